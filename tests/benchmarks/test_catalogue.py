"""The benchmark of catalogues: its line through the peer's times, and a short run of each part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import catalogue
from benchmarks.catalogue_work import BASE, Items, Step, medians
from tests.tiny_model import save_tiny_llama


def test_items_have_a_code_of_each_level() -> None:
    rows = Items(500, 3, 16).rows()
    assert rows.shape == (500, 3)
    for level in range(3):
        codes = rows[:, level] - BASE - 16 * level
        assert (codes.min(), codes.max()) == (0, 15)


def test_what_is_not_the_model_s_is_control_copies_and_selection() -> None:
    step = Step(rows=4, control=1.0, blocks=1.0, forward=14.0, logits=2.0, select=2.0)
    assert (step.total, step.share) == (20.0, 0.2)
    assert medians([step])["total"] == 20_000.0


def test_the_peer_s_time_is_drawn_on_as_a_line() -> None:
    class Ours:
        seconds = 2.0
        results = (type("Result", (), {"candidates": ()}),)

    class Candidate:
        token_ids = (5, 6)

    Ours.results[0].candidates = (Candidate,)  # type: ignore[attr-defined]
    peers: dict[int, dict[str, Any]] = {
        4: {"seconds": 10.0, "peak_bytes": 1, "paths": [[5, 6]]},
        8: {"seconds": 16.0, "peak_bytes": 2, "paths": [[5, 7]]},
    }
    found = catalogue._against(100, 4.0, {4: Ours, 8: Ours}, peers)
    assert found["at_width_seconds"] == pytest.approx(4 + 1.5 * 100)
    assert found["at_width_ratio"] == pytest.approx(154 / 4)
    assert [(one["ratio"], one["same_items"]) for one in found["transformers"]] == [(5.0, 1.0), (8.0, 0.0)]


def test_a_short_run_of_each_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = save_tiny_llama(tmp_path / "tiny", vocab_size=BASE + 100), tmp_path / "found.jsonl"
    small = f"--items 300 --depth 3 --codes 20 --record {file}"
    engine = f"--model {model} --threads 1 --width 6 --prompt 40 --kv-memory 20MiB"
    for command in (
        f"trie {small} --rows 8 --repeats 3",
        f"wide {small} {engine} --peer-widths 2 3",
        f"concurrent {small} {engine} --at 1 3",
    ):
        monkeypatch.setattr(sys, "argv", ["catalogue", *command.split()])
        catalogue.main()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert [r["seed"] for r in records] == [0, 0, 0]
    trie, wide, concurrent = (r["result"] for r in records)
    assert all("record" not in found and "catalogue" not in found for found in (trie, wide, concurrent))
    assert len(trie["us_by_depth"]) == 3
    assert (wide["candidates"], wide["complete"], wide["full_steps"]) == (6, 6, 3)
    assert [one["same_items"] for one in wide["transformers"]] == [1.0, 1.0]
    assert wide["block_bytes"] < wide["naive_bytes"]
    assert (concurrent["1"]["most_rows"], concurrent["3"]["most_rows"]) == (6, 18)
