"""A journal that moves on to another file: each can be replayed alone, and there is a bound to them all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from forkdecode.engine.replay import replay
from forkdecode.engine.rotation import HARD_LIMIT, Rotation
from forkdecode.errors import InvalidRequestError
from forkdecode.scheduler.events import GroupFinished
from forkdecode.scheduler.request import NodeRef, Share
from forkdecode.types import Beam, Sample
from tests.engine.journals import START, journaled
from tests.scheduler.engines import assert_idle, request, run

SIZE = 2000
"""Bytes: one small request is more."""
PROMPT = [5, 6, 7, 8, 9, 10, 11]


def replayed_alone(path: Path) -> list[str]:
    """How its runs ended."""
    found = replay(path)
    assert found.ok, found.broken
    assert found.unfinished is None
    return [one.ended for one in found.runs]


def test_a_file_of_its_size_is_followed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "j"
    engine, plain = journaled(path, rotation=Rotation(8000, keep=2)), journaled(tmp_path / "plain")
    schedulers = set()
    for number in range(12):
        what = request(f"r{number}", PROMPT, Beam(width=3), max_tokens=8)
        results = []
        for each in (engine, plain):
            each.submit(what)
            event = run(each)[what.request_id]
            assert isinstance(event, GroupFinished)
            results.append([(c.token_ids, c.score) for c in event.candidates])
        assert results[0] == results[1]
        schedulers.add(id(engine.scheduler))
        assert_idle(engine)
    engine.close()
    plain.close()
    files = sorted(tmp_path.glob("j*"))
    assert files == [path, tmp_path / "j.1", tmp_path / "j.2"]
    assert len(schedulers) > 3
    for file in files:
        assert replayed_alone(file) == ["closed"]
    for old in files[1:]:
        assert 8000 <= old.stat().st_size < 2 * 8000


def test_what_tree_nodes_hold_is_computed_again_in_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "j"
    engine = journaled(path, rotation=Rotation(SIZE, keep=9))
    node = NodeRef("tree", 1)
    for number in range(3):
        what = request(f"r{number}", PROMPT, Sample(n=2), max_tokens=3)
        what = dataclasses.replace(what, origin=node)
        engine.submit(what)
        run(engine)
        engine.tree(Share(node, (NodeRef("tree", 2 + number),), 4))
    engine.close()
    assert len(list(tmp_path.iterdir())) == 4
    for file in tmp_path.iterdir():
        assert replayed_alone(file) == ["closed"]


def test_an_engine_that_is_never_idle_fills_no_disk(tmp_path: Path) -> None:
    path, size = tmp_path / "j", 8000
    engine = journaled(path, rotation=Rotation(size, keep=1))
    engine.submit(request("long", PROMPT, Sample(n=4), max_tokens=300))
    run(engine)
    assert replayed_alone(tmp_path / "j.1") == ["full"]
    assert (tmp_path / "j.1").stat().st_size < (HARD_LIMIT + 1) * size
    engine.submit(request("after", PROMPT, Sample(n=4), max_tokens=3))
    run(engine)
    engine.close()
    assert replayed_alone(path) == ["closed"]
    assert replay(path).runs[0].requests == 1


def test_a_file_that_is_full_when_an_engine_starts_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for rotation in (None, Rotation(SIZE, keep=1)):
        engine = journaled(path, rotation=rotation)
        assert rotation is None or path.stat().st_size < SIZE
        engine.submit(request("r", PROMPT, Sample(n=2), max_tokens=2))
        run(engine)
        engine.close()
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "j.1"]
    for file in tmp_path.iterdir():
        assert replayed_alone(file) == ["closed"]


def test_none_are_kept_where_none_are_to_be(tmp_path: Path) -> None:
    path = tmp_path / "j"
    engine = journaled(path, rotation=Rotation(SIZE, keep=0))
    for number in range(3):
        engine.submit(request(f"r{number}", PROMPT, Sample(n=2), max_tokens=3))
        run(engine)
    engine.close()
    assert list(tmp_path.iterdir()) == [path]
    assert replayed_alone(path) == ["closed"]


def test_a_file_that_is_no_journal_is_not_moved(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not to be lost" * 100)
    with pytest.raises(InvalidRequestError, match="this file is no step journal"):
        journaled(path, rotation=Rotation(10))
    assert path.read_text() == "not to be lost" * 100
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_can_be_begun_the_engine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("no space left")

    path = tmp_path / "j"
    engine = journaled(path, rotation=Rotation(SIZE))
    monkeypatch.setattr("forkdecode.engine.journal.make_room", refuse)
    for number in range(2):
        engine.submit(request(f"r{number}", PROMPT, Sample(n=2), max_tokens=3))
        assert isinstance(run(engine)[f"r{number}"], GroupFinished)
    engine.close()
    assert replayed_alone(path) == ["closed"]
    assert path.read_bytes().startswith(START)


@pytest.mark.parametrize(
    ("size", "keep", "field"),
    [
        (0, 1, "size"),
        (-1, 1, "size"),
        (2**63, 1, "size"),
        (1.5, 1, "size"),
        (1, -1, "keep"),
        (1, None, "keep"),
    ],
)
def test_wrong_settings_are_named(size: Any, keep: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"^{field}: "):
        Rotation(size, keep)
