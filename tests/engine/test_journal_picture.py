"""Pictures of journals: what was decoded is in them, token by token, and whose blocks it was in."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from forkdecode.calls.picture import Picture, PictureNode
from forkdecode.engine.journal_picture import journal_picture
from forkdecode.errors import InvalidRequestError
from forkdecode.scheduler.events import GroupFinished
from forkdecode.scheduler.request import NodeRef, Release, Share
from forkdecode.types import Beam, BestOf, Greedy, Sample, Strategy
from tests.engine.journals import changed, journaled
from tests.scheduler.engines import request, run, score_request

PROMPT = list(range(3, 12))


def path(picture: Picture, node: PictureNode) -> list[int]:
    """The token ids down to a node: they are its text where nobody knows the vocabulary."""
    above = [] if node.parent is None else path(picture, picture.nodes[node.parent])
    return above + [int(word) for word in node.text.split()]


def kept(picture: Picture) -> Counter[tuple[int, ...]]:
    """Paths of what was returned."""
    return Counter(tuple(path(picture, node)) for node in picture.nodes if node.reason is not None)


@pytest.mark.parametrize(
    "strategy",
    [
        Greedy(),
        Sample(n=5, seed=1),
        BestOf(best_of=6, n=2, seed=3),
        Beam(width=4),
        Beam(width=6, num_return_sequences=3),
    ],
    ids=str,
)
@pytest.mark.parametrize("eos", [(), (1, 2, 3, 4, 5, 6)])
def test_what_was_returned_is_kept(tmp_path: Path, strategy: Strategy, eos: tuple[int, ...]) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", PROMPT, strategy, eos=eos, max_tokens=8))
    event = run(engine)["a"]
    engine.close()
    assert isinstance(event, GroupFinished)
    picture = journal_picture(tmp_path / "j")
    assert picture.notes == ""
    assert (picture.nodes[0].name, picture.nodes[0].kind, path(picture, picture.nodes[0])) == (
        "a",
        "prompt",
        PROMPT,
    )
    assert kept(picture) == Counter((*PROMPT, *c.token_ids) for c in event.candidates)
    ends = {tuple(path(picture, node)): node for node in picture.nodes}
    for candidate in event.candidates:
        node = ends[(*PROMPT, *candidate.token_ids)]
        assert (node.reason, node.gone) == (candidate.finish_reason, None)
        assert node.score == pytest.approx(candidate.score)
    assert all(node.ended is not None for node in picture.nodes)
    lost = [node for node in picture.nodes if node.kind == "generated" and node.gone is not None]
    assert bool(lost) == isinstance(strategy, (Beam, BestOf))
    assert sum(node.computed or 0 for node in picture.nodes) == len(PROMPT)
    assert all(list(node.grown) == sorted(node.grown) for node in picture.nodes)
    assert {step for node in picture.nodes for step in node.grown} <= set(range(len(picture.steps)))


def test_a_trees_nodes_have_their_numbers_and_blocks(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j", prefix_cache=False)

    def command(name: str, at: int, tokens: list[int], first: int) -> list[list[int]]:
        what = request(name, tokens, Sample(n=2, seed=at), max_tokens=5)
        what = dataclasses.replace(what, origin=NodeRef("t", at), keep=NodeRef("t", first))
        engine.submit(what)
        event = run(engine)[name]
        assert isinstance(event, GroupFinished)
        return [[*tokens, *c.token_ids] for c in event.candidates]

    one, two = command("r1", 0, PROMPT, 1)
    engine.tree(Share(NodeRef("t", 2), (NodeRef("t", 3),), len(two)))
    command("r2", 3, [*two, 9, 9], 4)
    engine.tree(Release("t", (1,)))
    command("r3", 0, PROMPT, 6)
    engine.submit(request("other", PROMPT, Greedy(), max_tokens=2))
    run(engine)
    engine.close()
    picture = journal_picture(tmp_path / "j", only="t")
    names = {node.name: place for place, node in enumerate(picture.nodes)}
    assert set(names) == {"t: 0", "1", "2", "3", "4", "5", "6", "7"}
    above = {
        node.name: None if node.parent is None else picture.nodes[node.parent].name for node in picture.nodes
    }
    assert above == {
        "t: 0": None, "1": "t: 0", "2": "t: 0", "3": "2", "4": "3", "5": "3", "6": "t: 0", "7": "t: 0"
    }  # fmt: skip
    assert path(picture, picture.nodes[names["1"]]) == one
    assert path(picture, picture.nodes[names["3"]]) == [*two, 9, 9]
    gone = {node.name for node in picture.nodes if node.gone is not None}
    assert gone == {"1"}
    assert picture.nodes[names["6"]].computed == 1
    assert picture.nodes[names["4"]].computed == 3
    assert picture.blocks is not None
    tables = {place: blocks for _, place, blocks in picture.blocks.tables}
    counts = {block: count for _, block, count in picture.blocks.refs}
    # 8 of the prompt's 9 tokens are in KV at rest: two blocks of 4, and all nodes but the one given up
    # begin with them. The last token of the prompt is in blocks of the children.
    assert {counts[block] for block in tables[names["t: 0"]][:2]} == {7}
    assert not tables[names["1"]]


def test_scores_groups_that_fail_and_those_that_run(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(score_request("s", PROMPT, [[3, 4, 5], [3, 4], [3, 4, 5], [9]]))
    run(engine)
    engine.submit(request("c", PROMPT, Sample(n=2, seed=1), max_tokens=20))
    engine.submit(request("b", PROMPT, Beam(width=2), max_tokens=20))
    for _ in range(4):
        engine.step()
    engine.cancel("c")
    engine.step()
    engine.close()
    scored = journal_picture(tmp_path / "j", only="s")
    found = sorted(path(scored, node)[len(PROMPT) :] for node in scored.nodes[1:])
    assert found == [[3, 4], [3, 4, 5], [3, 4, 5], [9]]
    ended = journal_picture(tmp_path / "j", only="c")
    assert {node.reason for node in ended.nodes[1:]} == {"cancelled"}
    running = journal_picture(tmp_path / "j", only="b")
    assert [node for node in running.nodes if node.kind == "generated" and node.ended is None]
    assert len(journal_picture(tmp_path / "j", until=1).steps) == 2
    assert [n.name for n in journal_picture(tmp_path / "j").nodes if n.parent is None] == ["s", "c", "b"]
    with pytest.raises(InvalidRequestError, match="only: the journal has nothing of it"):
        journal_picture(tmp_path / "j", only="nobody")


def test_texts_of_a_vocabulary(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", [3, 4], Greedy(), max_tokens=3))
    run(engine)
    engine.close()
    halves = "\u00e9".encode()
    picture = journal_picture(tmp_path / "j", bytes_of=lambda token: halves[:1] if token == 3 else halves[1:])
    assert picture.nodes[0].text == "\u00e9"


def test_a_broken_journal_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", PROMPT, Greedy(), max_tokens=6))
    run(engine)
    engine.close()

    def change(found: list[list[Any]]) -> None:
        plan = [record for record in found if record[0] == "plan"][3]
        plan[3]["decodes"][0]["tails"][0, 0] += 1

    changed(tmp_path / "j", change)
    picture = journal_picture(tmp_path / "j")
    assert "run 1, step 4, plan" in picture.notes
    assert [len(node.pieces) for node in picture.nodes] == [0, 3]
