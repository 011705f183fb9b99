"""The benchmark of searches: its checker, its table, on a tiny model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.search_accuracy import METHODS, Task, arguments, last_number, main, wilson
from forkdecode.search import Branch
from tests.tiny_model import save_tiny_llama

TASK = Task((8, 5, 4))


@pytest.mark.parametrize(
    ("text", "finished", "expected"),
    [
        ("8 + 5 = 13\n13 + 4 = 17\n", True, 1.0),
        ("8 + 5 = 13\n13 + 4 = 17\n", False, 1.0),
        ("8 + 5 = 13\n", False, 1.0),
        ("8 + 5 = 13\n", True, 0.0),
        ("8 + 5 = 13", False, 0.0),
        ("8 + 5 = 12\n", False, 0.0),
        ("8 + 4 = 12\n", False, 0.0),
        ("8 + 5 = 13\n13 + 4 = 17\n17 + 4 = 21\n", False, 0.0),
        ("", True, 0.0),
    ],
)
def test_the_checker_reads_every_line(text: str, finished: bool, expected: float) -> None:
    assert TASK.check(Branch(1, 0, 1, "finished" if finished else "open", completion=text)) == expected


def test_what_a_sample_votes_for() -> None:
    assert last_number("8 + 5 = 13\n13 + 4 = 17\n") == "17"
    assert last_number("nothing") is None


def test_the_interval_is_wilsons() -> None:
    assert wilson(0.5, 100) == pytest.approx((0.4038, 0.5962), abs=1e-3)
    assert wilson(0.0, 20)[0] == 0.0


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_tiny_llama(tmp_path / "tiny", max_position_embeddings=512)
    args = arguments().parse_args(
        ["--model", str(model), "--tasks", "2", "--terms", "3", "--budget", "40", "--threads", "1"]
    )
    rows = asyncio.run(main(args))
    assert set(rows) == {*METHODS, "one sample", "majority", "best of n"} - {"samples"}
    assert all(0 < row["tokens"] <= 40 for row in rows.values())
    assert capsys.readouterr().out.count("solved") == len(rows)
