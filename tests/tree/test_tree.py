"""Trees of an LLM, from threads and from coroutines."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forkdecode
from forkdecode import (
    LLM,
    AsyncLLM,
    CapacityError,
    EngineClosedError,
    InvalidRequestError,
    NodeDelta,
    NodePath,
    NodeStopped,
    NoLegalTokenError,
    Options,
    Sample,
    Tree,
    TreeLimits,
)
from forkdecode.calls.tree import Node
from forkdecode.constraint_types import FromCatalogue, JsonSchema, Regex
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.tree.lineages import decode_seed
from tests.llm.models import PROMPT, TOKENIZER, ids, opened, tiny_llama

WORDS: dict[str, Any] = {"max_tokens": 6, "allowed_token_ids": ids("abc d\n"), "ignore_eos": True}
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with opened(block_size=4) as shared:
        yield shared
        assert shared.stats().held_nodes == 0
        # What the last step's copies have read is free from the next step on.
        shared.decode(PROMPT, max_tokens=2)


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


SCHEMA = JsonSchema(
    {
        "type": "object",
        "properties": {
            "a": {"enum": ["left", "right"]},
            "b": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("number", range(4))
def test_under_a_grammar_pieces_make_whole_texts(llm: LLM, number: int) -> None:
    """Pieces of any length, by max_tokens, a step delimiter, or given."""
    draw = random.Random(number)
    whole = llm.decode(PROMPT, constraint=SCHEMA, max_tokens=120).candidates[0]
    assert json.loads(whole.text).keys() == {"a", "b"}
    with llm.tree(PROMPT, seed=number) as tree:
        [node] = tree.decode(tree.root, max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        while not node.is_finished:
            step = draw.choice([(), ("e", '"')])
            [node] = tree.decode(node, max_tokens=draw.randint(1, 9), step=step, constraint=SCHEMA)
        assert node.completion == whole.text
        leaves = tree.decode(tree.root, Sample(6), max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        done = []
        while leaves:
            done += [leaf for leaf in leaves if leaf.is_finished]
            leaves = [leaf for leaf in leaves if not leaf.is_finished]
            for i, leaf in enumerate(leaves):
                if leaf.num_tokens > tree.root.num_tokens + 1:
                    leaves[i] = tree.extend(tree.truncate(leaf, leaf.num_tokens - 1), leaf.token_ids[-1:])
            if leaves:
                leaves = tree.decode(leaves, Sample(), max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        for leaf in done:
            found = json.loads(leaf.completion)
            assert found["a"] in ("left", "right")
            assert 0 <= found["b"] <= 99


def test_items_of_a_catalogue_in_pieces_and_one_after_another(llm: LLM) -> None:
    items = [ids(text) for text in ("abc", "abd", "bcde", "cab", "dd")]
    keys = {item: f"item {i}" for i, item in enumerate(items)}
    llm.catalogues.put("items", build_catalogue(items, list(keys.values())))
    with llm.tree(PROMPT, seed=2) as tree:
        for end in ("eos", "item"):
            held: dict[str, Any] = {"constraint": FromCatalogue("items", end=end)}
            [whole] = tree.decode(tree.root, max_tokens=8, **held)
            [begun] = tree.decode(tree.root, max_tokens=1, **held)
            [rest] = tree.decode(begun, max_tokens=8, **held)
            assert begun.token_ids + rest.token_ids == whole.token_ids
            assert rest.finish_reason == ("eos" if end == "eos" else "stop")
            item = whole.token_ids[:-1] if end == "eos" else whole.token_ids
            assert (whole.item, begun.item, rest.item) == (keys[item], None, keys[item])
            for leaf in tree.decode(
                tree.decode(tree.root, Sample(6), max_tokens=1, **held), max_tokens=8, **held
            ):
                assert ids(leaf.completion) in items
        [second] = tree.decode(rest, max_tokens=8, **held)
        assert second.token_ids in items
        assert second.item == keys[second.token_ids]
        [twin] = tree.decode(begun, max_tokens=8, **held)
        tree.finish(twin)
        assert (twin.item, twin.is_finished) == (rest.item, True)
        assert tree.fork(second)[0].item is tree.extend(second, "a").item is None
        with llm.tree() as other:
            assert [node.item for node in other.import_(tree.export([begun, second]))] == [None, second.item]
        given = tree.extend(tree.root, "c")
        [anew] = tree.decode(given, max_tokens=8, **held)
        assert anew.token_ids in items
        llm.catalogues.put("items", build_catalogue([ids("zz")]))
        with pytest.raises(InvalidRequestError, match=r"^constraint: does not allow how node \d+ goes on"):
            tree.decode(begun, max_tokens=8, **held)
        assert tree.decode(tree.extend(begun, "z"), max_tokens=8, **held)[0].text == "zz"
        llm.catalogues.remove("items")


def test_a_function_says_what_may_follow_a_path(llm: LLM) -> None:
    letters = ids("abcd")

    def follows(batch_id: int, path: Any) -> list[int]:
        return [letters[int(path.sum()) % 4], letters[len(path) % 4]]

    with llm.tree(PROMPT) as tree:
        [whole] = tree.decode(tree.root, max_tokens=12, prefix_allowed_tokens_fn=follows)
        assert set(whole.token_ids) <= set(letters)
        node = tree.root
        for length in (1, 4, 7):
            [node] = tree.decode(node, max_tokens=length, prefix_allowed_tokens_fn=follows)
        assert node.path_token_ids == whole.path_token_ids
        for child in tree.decode(
            tree.extend(node, "zz"), Sample(3), max_tokens=5, prefix_allowed_tokens_fn=follows
        ):
            for at in range(child.num_tokens - 5, child.num_tokens):
                path = torch.tensor(child.path_token_ids[:at])
                assert child.path_token_ids[at] in follows(0, path)


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


def test_what_is_exported_is_plain_and_comes_back(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=3) as tree:
        nodes = tree.decode(tree.root, Sample(n=2), **WORDS)
        text = json.dumps([path.to_json() for path in tree.export([tree.root, *nodes])])
        expected = tree.decode(nodes, Sample(n=2), **WORDS)
    with llm.tree() as other:
        with pytest.raises(InvalidRequestError, match="without one"):
            _ = other.root
        root, *back = other.import_(NodePath.of_json(plain) for plain in json.loads(text))
        assert other.root is root
        assert [node.parent for node in back] == [root, root]
        assert [node.path_text for node in back] == [node.path_text for node in nodes]
        found = other.decode(back, Sample(n=2), **WORDS)
        assert [n.token_ids for n in found] == [n.token_ids for n in expected]


def test_a_saved_tree_is_loaded_and_goes_on(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "tree.fd"
    with llm.tree(PROMPT, seed=3) as tree:
        [first, second] = tree.decode(tree.root, Sample(n=2), **WORDS)
        given = tree.extend(first, " a")
        [held] = tree.decode(given, Sample(), max_tokens=3, constraint=Regex("[ab]{9}"))
        cut = tree.truncate(second, second.num_tokens - 1)
        running = tree.start(tree.root, **LONG)
        tree.prune(given, subtree=False)
        tree.save(file)
        tree.prune(running)
        kept = [node for node in tree.nodes if node not in running]
        expected = [tree.decode(node, Sample(n=2), **WORDS) for node in kept]
        expected.append(tree.decode(held, max_tokens=20, constraint=Regex("[ab]{9}")))
    tree.save(tmp_path / "ended.fd")
    with llm.tree() as other:
        back = other.load(file)
        assert [told(node) for node in back] == [told(node) for node in kept]
        assert [node.path_text for node in back] == [node.path_text for node in kept]
        by_text = dict(zip(kept, back, strict=True))
        assert (by_text[cut].parent, by_text[held].parent) == (by_text[tree.root], None)
        found = [other.decode(node, Sample(n=2), **WORDS) for node in back]
        found.append(other.decode(by_text[held], max_tokens=20, constraint=Regex("[ab]{9}")))
        assert [[n.token_ids for n in made] for made in found] == [
            [n.token_ids for n in made] for made in expected
        ]
        with pytest.raises(InvalidRequestError, match="saved after the tree had ended"):
            other.load(tmp_path / "ended.fd")
    (tmp_path / "lines.json").write_text("\n".join(json.dumps(p.to_json()) for p in exported(llm)))
    with llm.tree() as other:
        assert [node.text for node in other.load(tmp_path / "lines.json")] == [PROMPT, "!"]
        assert other.load(file)[0].text == PROMPT


def told(node: Node) -> tuple[Any, ...]:
    """What of a node a file keeps."""
    return (node.token_ids, node.text, node.state, node.finish_reason, node.cumulative_logprob, node.lineage)


def exported(llm: LLM) -> list[NodePath]:
    with llm.tree(PROMPT) as tree:
        return tree.export([tree.root, tree.extend(tree.root, "!")])


@pytest.mark.parametrize(
    "content",
    ["", "[]", "hello", "{}", "[3]", '{"format": "x"}', '{"format": 1, "paths": [{"own_ids": [1]}]}'],
)
def test_what_cannot_be_loaded_is_refused(llm: LLM, tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with llm.tree(PROMPT) as tree:
        with pytest.raises(InvalidRequestError):
            tree.load(tmp_path / "x")
        with pytest.raises(FileNotFoundError):
            tree.load(tmp_path / "nowhere")
        assert tree.nodes == (tree.root,)


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


@pytest.mark.parametrize(
    "verb",
    [
        lambda tree, node: tree.decode(node, Sample(n=2), max_tokens=2),
        lambda tree, node: tree.start([tree.root, node], max_tokens=2),
        lambda tree, node: tree.stream(node, max_tokens=2),
        lambda tree, node: tree.fork(node, 2),
        lambda tree, node: tree.extend(node, " d"),
        lambda tree, node: tree.truncate(node, 3),
        lambda tree, node: tree.score(node, [" a"]),
        lambda tree, node: tree.prune(node),
        lambda tree, node: tree.pin(node),
        lambda tree, node: tree.unpin(node),
        lambda tree, node: tree.stop(node),
        lambda tree, node: tree.finish(node),
        lambda tree, node: tree.export(node),
        lambda tree, node: tree.wait(node),
    ],
    ids=[
        "decode",
        "start",
        "stream",
        "fork",
        "extend",
        "truncate",
        "score",
        "prune",
        "pin",
        "unpin",
        "stop",
        "finish",
        "export",
        "wait",
    ],
)
def test_a_node_of_another_tree_is_refused(llm: LLM, verb: Callable[[Tree, Node], Any]) -> None:
    """Its number is that of a node here, too."""
    with llm.tree(PROMPT, seed=1) as tree, llm.tree(PROMPT, seed=2) as other:
        before = other.root._next_seed, tree.root._next_seed
        with pytest.raises(InvalidRequestError, match="is of another tree") as caught:
            verb(tree, other.root)
        assert (caught.value.field, caught.value.limit) == ("nodes", "Nodes of this tree")
        assert (other.root._next_seed, tree.root._next_seed) == before
        assert (tree.nodes, other.nodes) == ((tree.root,), (other.root,))


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


WRONG: dict[str, tuple[Callable[[Tree], object], str]] = {
    "no node": (lambda tree: tree.decode(0), "nodes"),  # type: ignore[arg-type]
    "nodes": (lambda tree: tree.prune("all"), "nodes"),  # type: ignore[arg-type]
    "node": (lambda tree: tree.fork(0), "node"),  # type: ignore[arg-type]
    "option": (lambda tree: tree.decode(tree.root, colour=1), "colour"),
    "both": (lambda tree: tree.decode(tree.root, options=Options(), stop="a"), "stop"),
    "beam": (lambda tree: tree.decode(tree.root, forkdecode.Beam()), "strategy"),  # type: ignore[arg-type]
    "number": (lambda tree: tree.node(99), "node"),
    "long": (lambda tree: tree.decode(tree.root, max_tokens=10_000), "max_tokens"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(llm: LLM, case: str) -> None:
    call, field = WRONG[case]
    with llm.tree(PROMPT) as tree:
        with pytest.raises(InvalidRequestError) as caught:
            call(tree)
        assert caught.value.field == field
        assert tree.decode(tree.root, max_tokens=1)


def test_wrong_prompts_and_limits(llm: LLM) -> None:
    for prompt in ("", [], [99999], 5):
        with pytest.raises(InvalidRequestError, match="prompt"):
            llm.tree(prompt)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="seed"):
        llm.tree(PROMPT, seed=-1)
    with llm.tree(PROMPT, limits=TreeLimits(max_nodes=2)) as tree, pytest.raises(CapacityError):
        tree.fork(tree.root, 2)


def test_threads_share_a_tree(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=4) as tree:
        forks = tree.fork(tree.root, 8)
        start = threading.Barrier(8)

        def work(node: Node) -> list[tuple[int, ...]]:
            start.wait()
            found = []
            for _ in range(3):
                [child] = tree.decode(node, Sample(), **WORDS)
                found.append(child.token_ids)
                node = child
            return found

        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(work, forks))
        assert len(tree.nodes) == 1 + 8 + 24
    with llm.tree(PROMPT, seed=4) as tree:
        start = threading.Barrier(1)
        assert [work(node) for node in tree.fork(tree.root, 8)] == together


def test_a_tree_that_is_closed_or_dropped_leaves_nothing(llm: LLM) -> None:
    tree = llm.tree(PROMPT)
    tree.start(tree.root, Sample(n=2), **LONG)
    tree.close()
    tree.close()
    with pytest.raises(EngineClosedError):
        tree.fork(tree.root)
    dropped = llm.tree(PROMPT)
    dropped.decode(dropped.root, **WORDS)
    del dropped
    gc.collect()
    assert llm.stats().held_nodes == 0


def test_waiting_ends_when_another_thread_closes_the_tree(llm: LLM) -> None:
    tree = llm.tree(PROMPT)
    nodes = tree.start(tree.root, Sample(n=2), **LONG)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tree.wait, nodes)
        tree.close()
        assert isinstance(waiting.exception(), EngineClosedError) or not nodes[0].is_generating


def test_an_engine_that_is_closed_ends_what_runs() -> None:
    llm = LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=512, threads=1)
    tree = llm.tree(PROMPT)
    [node] = tree.start(tree.root, **LONG)
    llm.close()
    tree.wait(node)
    if node.error is not None:  # it may have been done before
        assert isinstance(node.error, EngineClosedError)
        assert node.finish_reason == "failed"
    with pytest.raises(EngineClosedError):
        tree.decode(tree.root)
    tree.close()


def test_coroutines() -> None:
    async def main() -> None:
        async with await AsyncLLM.create(
            tiny_llama(), tokenizer=TOKENIZER, num_blocks=4096, threads=1
        ) as llm:
            async with await llm.tree(PROMPT, seed=4) as tree:
                root = tree.root
                forks = await tree.fork(root, 3)
                parts = await asyncio.gather(*(tree.decode(f, Sample(n=2), **WORDS) for f in forks))
                assert [len(part) for part in parts] == [2, 2, 2]
                child = parts[0][0]
                own = [child.path_token_ids, child.text]
                again = await tree.decode(forks, Sample(n=2), seed=0, **WORDS)
                assert [n.token_ids for n in again] == [n.token_ids for part in parts for n in part]
                assert [(await tree.extend(child, "!")).path_token_ids[:-1], child.text] == own
                events = [event async for event in tree.stream(root, Sample(n=2), **WORDS)]
                assert sum(isinstance(event, NodeStopped) for event in events) == 2
                assert (await tree.decode([]), await tree.prune([])) == ([], None)
                assert [event async for event in tree.stream([])] == []
                scores = await tree.score(child, ["a"])
                assert scores[0].token_ids == ids("a")
                await tree.pin(child)
                await tree.unpin(child)
                assert (await tree.truncate(child, child.num_tokens - 1)).token_ids == child.token_ids[:-1]
                paths = await tree.export(child)
                assert (await tree.import_(paths))[0].path_text == child.path_text
                await tree.finish(child)
                with pytest.raises(InvalidRequestError, match="finished"):
                    await tree.decode(child)
                await _cancelled(tree)
                async with await llm.tree(PROMPT, seed=4) as other:
                    await _refuses(tree, other.root)
            with pytest.raises(EngineClosedError):
                await tree.fork(root)
            dropped = await llm.tree(PROMPT)
            await dropped.start(dropped.root, **LONG)
            del dropped
            gc.collect()
            while (stats := await llm.stats()).held_nodes + stats.running_groups:
                await asyncio.sleep(0)
            # What the last step's copies have read is free from the next step on.
            await llm.decode(PROMPT, max_tokens=2)
            assert (await llm.stats()).used_blocks == 0

    asyncio.run(main())


async def _refuses(tree: forkdecode.AsyncTree, node: Node) -> None:
    """Of another tree."""
    for verb in (lambda: tree.fork(node), lambda: tree.prune([node]), lambda: tree.wait(node)):
        with pytest.raises(InvalidRequestError, match="is of another tree"):
            await verb()


async def _cancelled(tree: forkdecode.AsyncTree) -> None:
    """A decode whose await is cancelled leaves no nodes; a stream that is left stops its own."""
    before = tree.nodes
    task = asyncio.create_task(tree.decode(tree.root, Sample(n=2), **LONG))
    while len(tree.nodes) == len(before):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    while tree.nodes != before:
        await asyncio.sleep(0)
    stream = tree.stream(tree.root, **LONG)
    event = await anext(stream)
    await stream.aclose()
    node = tree.node(event.node)
    await tree.wait(node)
    assert node.finish_reason == "cancelled"
    started = await tree.start(tree.root, Sample(n=2), **LONG)
    waiting = asyncio.create_task(tree.wait(started))
    await tree.stop(started[0])
    await tree.prune(started[1])
    await waiting


def test_what_precedes_an_imported_node_is_the_text_of_its_tokens(llm: LLM) -> None:
    """As docs/trees.md says: the stop text that was cut from its parent is in it."""
    with llm.tree(PROMPT) as tree, llm.tree() as other:
        [cut] = tree.decode(tree.root, stop="b", allowed_token_ids=ids("b"), max_tokens=3)
        last = tree.extend(cut, "x")
        assert last.path_text == PROMPT + "x"
        [alone] = other.import_(tree.export(last))
        assert alone.path_text == PROMPT + "bx"
        _, _, below = other.import_(tree.export([tree.root, cut, last]))
        assert below.path_text == last.path_text
