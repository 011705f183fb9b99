"""Trees of an LLM: their nodes, and what they tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forkdecode import LLM, InvalidRequestError, NodeDelta, NodeStopped, NoLegalTokenError, Sample
from forkdecode.tree.lineages import decode_seed
from tests.llm.models import PROMPT, ids
from tests.tree.words import LONG, WORDS


def test_a_tree_from_prompt_to_answer(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=5) as tree:
        assert (tree.root.text, tree.root.id, tree.seed, tree.model) == (PROMPT, 0, 5, llm.info.name)
        steps = tree.decode(tree.root, Sample(n=4), step="\n", **WORDS)
        assert [node.parent for node in steps] == [tree.root] * 4
        assert tree.root.children == tuple(steps)
        assert all(node.finish_reason == ("step" if node.text[-1] == "\n" else "length") for node in steps)
        best = max(steps, key=lambda node: node.cumulative_logprob)
        tree.prune([node for node in steps if node is not best])
        assert tree.nodes == (tree.root, best)
        assert all(node.is_pruned for node in steps if node is not best)
        tool = tree.extend(best, " 42")
        tail = tree.decode(tool, logprobs=1, **WORDS)[0]
        assert tail.path_text == PROMPT + best.text + " 42" + tail.text
        assert tail.completion == best.text + " 42" + tail.text
        assert tail.path_logprob == best.cumulative_logprob + tail.cumulative_logprob
        assert tail.logprobs is not None
        assert len(tail.logprobs) == 6
        assert tail.path_token_ids == (*tree.root.token_ids, *best.token_ids, *ids(" 42"), *tail.token_ids)
        assert tail.num_tokens == len(tail.path_token_ids)
        expected = llm.decode(tool.path_token_ids, logprobs=1, **WORDS).candidates[0]
        assert (tail.token_ids, tail.text) == (expected.token_ids, expected.text)
        assert expected.logprobs is not None
        mine = [token.logprob for token in tail.logprobs]
        assert mine == pytest.approx([token.logprob for token in expected.logprobs], abs=1e-3)
        back = tree.truncate(tail, tool.num_tokens + 2)
        assert back.token_ids == tail.token_ids[:2]
        assert (back.parent, tree.node(back.id)) == (tool, back)
        tree.pin(back, ttl=60)
        tree.unpin([back])
        tree.finish(tail)
        assert tail.is_finished
        with pytest.raises(InvalidRequestError, match="finished"):
            tree.decode(tail)


def test_children_of_a_decode_that_fails_for_one_of_its_nodes_stay_in_the_tree(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=5) as tree:
        stuck, fine = tree.extend(tree.root, [5]), tree.extend(tree.root, [6])
        after_5 = [(5, token) for token in range(llm.info.vocab_size)]
        with pytest.raises(NoLegalTokenError):
            tree.decode([stuck, fine], Sample(n=2), max_tokens=3, ignore_eos=True, bad_words=after_5)
        assert [(c.finish_reason, type(c.error)) for c in stuck.children] == [
            ("failed", NoLegalTokenError)
        ] * 2
        assert [(c.finish_reason, c.error, len(c.token_ids)) for c in fine.children] == [
            ("length", None, 3)
        ] * 2
        assert {*stuck.children, *fine.children} < set(tree.nodes)
        assert tree.decode(fine.children, max_tokens=1, ignore_eos=True)
        started = tree.start([stuck, fine], max_tokens=3, ignore_eos=True, bad_words=after_5)
        tree.wait(started)
        assert [child.finish_reason for child in started] == ["failed", "length"]


def test_nodes_are_what_ordinary_requests_give(llm: LLM) -> None:
    strategy = Sample(n=2, temperature=0.9)
    options = LONG | {"max_tokens": 9, "repetition_penalty": 1.1}
    with llm.tree(PROMPT, seed=9) as tree:
        middle = tree.decode(tree.root, Sample(n=2), max_tokens=5, ignore_eos=True)
        forks = tree.fork(middle[1], 2)
        for node in (*middle, *forks):
            made = tree.decode(node, strategy, seed=6, **options)
            seeded = replace(strategy, seed=decode_seed(node.lineage, 6))
            alone = llm.decode(node.path_token_ids, seeded, **options)
            assert [n.token_ids for n in made] == [c.token_ids for c in alone.candidates]
            expected = [candidate.cumulative_logprob for candidate in alone.candidates]
            assert [n.cumulative_logprob for n in made] == pytest.approx(expected, abs=1e-3)


def test_a_node_draws_anew_each_time_and_the_same_in_another_tree(llm: LLM) -> None:
    trees = [llm.tree(PROMPT, seed=2) for _ in range(2)]
    drawn = []
    for tree in trees:
        first = tree.decode(tree.root, Sample(n=2), **WORDS)
        again = tree.decode(tree.root, Sample(n=2), **WORDS)
        assert len({node.token_ids for node in first + again}) == 4
        assert [n.token_ids for n in tree.decode(tree.root, Sample(n=2), seed=1, **WORDS)] == [
            n.token_ids for n in again
        ]
        named = tree.decode(tree.root, Sample(seed=7), **WORDS)
        forks = tree.fork(tree.root, 2) + tree.fork(tree.root, 1)
        assert len({fork.lineage for fork in forks}) == 3
        drawn.append([n.token_ids for n in first + again + named + tree.decode(forks, Sample(), **WORDS)])
        tree.close()
    assert drawn[0] == drawn[1]
    with llm.tree(PROMPT) as other:
        assert other.seed != 2


def test_scores(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        one, two = tree.decode(tree.root, Sample(n=2), **WORDS)
        alone = llm.score(one.path_token_ids, ["a", (1, 2)], top_logprobs=2)
        scores = tree.score(one, ["a", (1, 2)], top_logprobs=2)
        for mine, other in zip(scores, alone.continuations, strict=True):
            assert (mine.token_ids, mine.text) == (other.token_ids, other.text)
            assert mine.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
            assert [len(token.top) for token in mine.logprobs] == [2] * len(mine.token_ids)
        own = tree.score([one, two])
        assert [s[0].token_ids for s in own] == [one.token_ids, two.token_ids]


def test_a_stream_tells_all_and_stops_when_closed(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        stream = tree.stream(tree.root, Sample(n=2), **WORDS)
        events = list(stream)
        for node in stream.nodes:
            mine = [event for event in events if event.node == node.id]
            assert "".join(e.text for e in mine if isinstance(e, NodeDelta)) == node.text
            assert isinstance(mine[-1], NodeStopped)
        with tree.stream(tree.root, Sample(n=2), **LONG) as long:
            next(long)
        tree.wait(long.nodes)
        assert {node.finish_reason for node in long.nodes} == {"cancelled"}
        assert all(len(node.token_ids) < 300 for node in long.nodes)
        dropped = tree.stream(tree.root, Sample(), **LONG)
        nodes = dropped.nodes
        del dropped
        tree.wait(nodes)
        assert nodes[0].finish_reason == "cancelled"


def test_starting_waiting_and_stopping(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        nodes = tree.start(tree.root, Sample(n=2), **LONG)
        assert all(node.is_generating for node in nodes)
        with pytest.raises(TimeoutError):
            tree.wait(nodes, timeout=0)
        with pytest.raises(InvalidRequestError, match="still being generated"):
            tree.decode(nodes[0])
        tree.stop(nodes[0])
        assert (nodes[0].state, nodes[0].finish_reason) == ("stopped", "cancelled")
        tree.prune(nodes[1])
        assert nodes[1].is_pruned
        assert not nodes[1].is_generating
        tree.wait(nodes)
        assert tree.decode(nodes[0], **WORDS)


def test_of_no_nodes_nothing_is_done(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        for quiet in (tree.prune, tree.stop, tree.finish, tree.pin, tree.unpin, tree.wait):
            quiet([])
        made: list[list[object]] = [
            [*tree.decode([])],
            [*tree.start([])],
            [*tree.export([])],
            [*tree.import_([])],
        ]
        assert made == [[], [], [], []]
        assert (tree.score([]), list(tree.stream([]))) == ([], [])
        with pytest.raises(InvalidRequestError, match="colour"):
            tree.decode([], colour=1)
        assert tree.nodes == (tree.root,)


def test_given_twice_the_same_a_node_has_two_children_of_one_path(llm: LLM) -> None:
    """What is drawn hangs on the path and the seed; forks draw by themselves."""
    with llm.tree(PROMPT) as tree:
        twins = [tree.extend(tree.root, " a") for _ in range(2)]
        assert twins[0].lineage == twins[1].lineage
        drawn = [tree.decode(node, Sample(), **WORDS)[0].token_ids for node in twins]
        assert drawn[0] == drawn[1]
        again = tree.decode(twins[1], Sample(n=1), **WORDS)[0].token_ids
        forks = [tree.extend(fork, " a") for fork in tree.fork(tree.root, 2)]
        apart = {tree.decode(node, Sample(), **WORDS)[0].token_ids for node in forks}
        assert len(apart | {drawn[0], again}) == 4
