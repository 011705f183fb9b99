"""Replay: whatever was changed in a journal is found where it is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from forkdecode.engine.replay import Replayed, replay
from forkdecode.errors import InvalidRequestError
from tests.engine.journals import changed, records, rewrite
from tests.engine.replays import broken, nth, plans, with_plan
from tests.scheduler.engines import VOCAB


def test_a_flipped_block_in_a_table_is_located(journal: Path) -> None:
    step, image = next((s, p) for s, p in plans(journal) if len(p["decodes"]) > 1)
    tails = image["decodes"][1]["tails"]
    row, column = len(tails) - 1, tails.shape[1] - 1
    wrong = int(tails[row, column]) ^ 1

    def flip(plan: dict[str, Any]) -> None:
        plan["decodes"][1]["tails"][row, column] = wrong

    with_plan(journal, step, flip)
    found = broken(journal)
    assert (found.run, found.step, found.where) == (1, step, "plan")
    assert found.field == f"decodes[1].tails[{row}, {column}]"
    assert (found.expected, found.got) == (wrong, tails[row, column])
    owner = image["selections"][1]["group_id"]
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert names[owner - 1] in found.requests


@pytest.mark.parametrize("part", ["slots", "positions", "token_ids"])
def test_a_flipped_number_of_a_token_names_its_request(journal: Path, part: str) -> None:
    step, image = next((s, p) for s, p in plans(journal) if len(p["decodes"]) > 1)
    at = image["decodes"][1]["token_start"]

    def flip(plan: dict[str, Any]) -> None:
        plan[part][at] ^= 1

    with_plan(journal, step, flip)
    found = broken(journal)
    assert (found.step, found.where, found.field) == (step, "plan", f"{part}[{at}]")
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert found.requests == (names[image["selections"][1]["group_id"] - 1],)


def test_a_missing_copy_is_located(journal: Path) -> None:
    step = next(s for s, p in plans(journal) if len(p["copies"]["source"]))

    def drop(plan: dict[str, Any]) -> None:
        plan["copies"] = {name: blocks[:-1] for name, blocks in plan["copies"].items()}

    with_plan(journal, step, drop)
    found = broken(journal)
    assert (found.step, found.where) == (step, "plan")
    assert found.field.startswith("copies.source[")
    assert found.expected is None
    assert found.requests


def test_a_corrupted_decision_shows_in_the_next_plan(journal: Path) -> None:
    step, image = next((s, p) for s, p in plans(journal) if p["decodes"] and s not in (8, 9))
    number = sum(1 for s, _ in plans(journal) if s <= step)
    token: list[int] = []

    def change(found: list[list[Any]]) -> None:
        outputs = [record for record in found if record[0] in ("output", "error")]
        output = outputs[number - 1][1]
        token.append(int(output.results[0].tokens[0]))
        output.results[0].tokens[0] = (token[0] + 1) % VOCAB

    changed(journal, change)
    found = broken(journal)
    assert found.step in (step, step + 1, step + 2)
    assert found.where in ("plan", "events")
    names = [record[1].request_id for record in records(journal) if record[0] == "add"]
    assert names[image["selections"][0]["group_id"] - 1] in found.requests


def test_events_that_did_not_happen_are_named(journal: Path) -> None:
    def rename(found: list[list[Any]]) -> None:
        last = next(record for record in found if record[0] == "events" and record[1])
        kind, name, *rest = last[1][0]
        last[1] = [
            ("CandidateEnded" if kind != "CandidateEnded" else "GroupStarted", name, *rest),
            *last[1][1:],
        ]

    changed(journal, rename)
    found = broken(journal)
    assert found.where == "events"
    assert found.field == "events[0][0]"
    assert len(found.requests) == 1


def test_counters_at_the_end_are_compared(journal: Path) -> None:
    def change(found: list[list[Any]]) -> None:
        stats = nth(found, "end", 0)
        stats[1] = dataclasses.replace(stats[1], copies=stats[1].copies + 1)

    changed(journal, change)
    found = broken(journal)
    assert (found.where, found.field) == ("stats", "copies")
    assert found.expected == found.got + 1


def test_a_lost_record_is_named(journal: Path) -> None:
    changed(journal, lambda found: found.remove(nth(found, "plan", 3)))
    found = broken(journal)
    assert (found.where, found.step) == ("journal", 3)
    changed(journal, lambda found: found.remove(nth(found, "output", 0)))
    assert broken(journal).where == "journal"


def test_a_request_that_was_never_recorded_is_missed(journal: Path) -> None:
    changed(journal, lambda found: found.remove(nth(found, "add", 0)))
    assert broken(journal).step == 1


def test_a_truncated_file_replays_as_far_as_it_goes(journal: Path) -> None:
    whole = journal.read_bytes()
    steps = replay(journal).runs[0].steps
    for size in (len(whole) - 1, len(whole) // 2, len(whole) // 3):
        journal.write_bytes(whole[:size])
        found = replay(journal)
        assert found.ok
        assert found.runs[0].ended == "cut off"
        assert found.runs[0].steps <= steps
        assert found.unfinished is not None
        assert "cut off" in found.unfinished


def test_damage_in_the_middle_is_a_break(journal: Path) -> None:
    broken_bytes = bytearray(journal.read_bytes())
    broken_bytes[len(broken_bytes) // 2] ^= 0xFF
    journal.write_bytes(broken_bytes)
    found = broken(journal)
    assert found.where == "file"
    assert "is damaged" in found.got


def test_another_version_is_named(journal: Path) -> None:
    def age(found: list[list[Any]]) -> None:
        found[0][1:3] = [b"12345678", "0.0.7"]

    changed(journal, age)
    with pytest.raises(InvalidRequestError, match=r"journal: forkdecode 0\.0\.7 wrote it"):
        replay(journal)


GARBAGE: list[list[Any]] = [
    [],
    ["plan"],
    ["plan", 1, 0.0, {"copies": 3}],
    ["nonsense", 1],
    ["add", None, None],
    ["add", 7, "x"],
    ["like", 7, None],
    ["cancel", 7],
    ["events", 3],
    ["output", 5],
    ["error", 1],
    ["tokens", b"x", 3, True],
    ["died"],
    ["run"],
    ["end", 5],
]


def test_garbage_in_whole_records_is_a_break_not_a_crash(journal: Path) -> None:
    good = records(journal)
    for bad in GARBAGE:
        rewrite(journal, [*good[:-1], bad])
        assert broken(journal).where in ("journal", "file", "request"), bad


def test_what_is_said_of_a_break_is_one_line(journal: Path) -> None:
    step, _ = next((s, p) for s, p in plans(journal) if p["decodes"])

    def flip(plan: dict[str, Any]) -> None:
        plan["decodes"][0]["context_len"] += 1

    with_plan(journal, step, flip)
    found: Replayed = replay(journal)
    text = str(found.broken)
    assert text.startswith(f"run 1, step {step}, plan: decodes[0].context_len: expected ")
    assert "; requests: " in text
    assert "\n" not in text
