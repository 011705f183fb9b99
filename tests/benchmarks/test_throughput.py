"""Pairs of runs: what is compared and recorded, and how a peer's process is treated."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report, throughput
from benchmarks.pairs import WARM_TOKENS
from benchmarks.peers import serve, started
from benchmarks.peers.names import parsed, shown
from benchmarks.peers.side import Side, own_environment
from benchmarks.peers.workloads import SEED, WORKLOADS, Workload
from benchmarks.throughput import compare, said

WORK = WORKLOADS[0]


class Made:
    """A side that answers what it is told to, one after the other."""

    def __init__(self, peer: str, *answers: dict[str, Any] | BaseException) -> None:
        self.peer, self.versions = peer, {peer: "1"}
        self.answers = list(answers)
        self.asked: list[int] = []

    def run(self, work: Workload, tokens: int) -> dict[str, Any]:
        self.asked.append(tokens)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def took(seconds: float) -> dict[str, Any]:
    return {"seconds": seconds, "tokens": 100}


def compared(ours: Made, *others: Made, runs: int = 2) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    compare(WORK, 25, ours, others, runs, done.append)
    return done


def test_ratios_are_of_pairs_after_a_short_warm_up() -> None:
    ours = Made("forkdecode", took(9.0), took(1.0), took(2.0))
    slow = Made("transformers", took(9.0), took(3.0), took(4.0))
    fast = Made("vllm", took(9.0), took(0.5), took(0.5))
    first, second = compared(ours, slow, fast)
    assert (first["ratio"], first["ratio_min"], first["ratio_max"]) == (2.5, 2.0, 3.0)
    assert (first["runs"], first["goal"], first["peer_versions"]) == (2, WORK.goal, {"transformers": "1"})
    assert (second["ratio_min"], second["ratio_max"], second["goal"]) == (0.25, 0.5, None)
    assert ours.asked == slow.asked == fast.asked == [WARM_TOKENS, 25, 25]
    assert "2.50x (2.00 to 3.00), goal 4x" in said(first)


def test_what_a_peer_cannot_do_and_what_went_wrong_are_results() -> None:
    ours = Made("forkdecode", took(1.0), took(1.0), took(1.0))
    unable = Made("transformers_batching", {"refused": "no beam search"})
    broken = Made("vllm", took(1.0), {"failed": "its process ended"})
    fine = Made("transformers", *[took(2.0)] * 3)
    results = compared(ours, unable, broken, fine)
    assert [said(r).split("  ")[-1].strip() for r in results[:2]] == [
        "not possible: no beam search",
        "failed: its process ended",
    ]
    assert results[2]["ratio"] == 2.0


def test_ours_does_not_run_where_no_peer_is_able() -> None:
    ours = Made("forkdecode", took(1.0))
    assert compared(ours, Made("vllm", {"refused": "no"}))[0]["refused"] == "no"
    assert ours.asked == [WARM_TOKENS]


def test_an_interrupted_run_keeps_its_pairs() -> None:
    ours = Made("forkdecode", took(1.0), took(1.0), KeyboardInterrupt())
    done: list[dict[str, Any]] = []
    with pytest.raises(KeyboardInterrupt):
        compare(WORK, 25, ours, [Made("transformers", *[took(2.0)] * 3)], 5, done.append)
    assert [(r["ratio"], r["runs"]) for r in done] == [(2.0, 1)]
    with pytest.raises(KeyboardInterrupt):
        compare(WORK, 25, Made("forkdecode", KeyboardInterrupt()), [Made("vllm")], 5, done.append)
    assert len(done) == 1


def test_a_record_says_its_settings_and_its_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Started(Made):
        ended = ""

        def __init__(self, peer: str, command: list[str], limit: float) -> None:
            super().__init__(peer, took(1.0), took(2.0))

        def close(self) -> None: ...

    monkeypatch.setattr(started, "Side", Started)
    file = tmp_path / "throughput.jsonl"
    command = "throughput.py --model m --dtype float32 --threads 1 --tokens 25 --runs 1 --workload greedyx16"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--record", str(file)])
    throughput.main()
    found = json.loads(file.read_text())
    assert found["seed"] == found["result"]["seed"] == SEED
    assert (found["result"]["dtype"], found["result"]["threads"], found["result"]["tokens"]) == (
        "float32",
        1,
        25,
    )
    assert found["command"] == command


def test_a_peer_can_be_named_with_options() -> None:
    assert parsed("vllm_cached") == ("vllm_cached", {})
    assert parsed("ctranslate2:batch=4,x=12") == ("ctranslate2", {"batch": 4, "x": 12})
    assert shown("transformers_batching:requests=8,x=1") == "transformers batching (requests 8, x 1)"
    assert started.peer("ctranslate2:batch=4") == "ctranslate2:batch=4"
    for wrong, why in (("llama", "'llama' is not one of transformers, "), ("vllm:x=-1", "'x=-1' is not")):
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            started.peer(wrong)


def test_our_own_failure_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"forkdecode.*too long"):
        compared(Made("forkdecode", {"failed": "too long"}), Made("vllm"))


class Decoder:
    """A peer: gives back what it is told to, of each sequence the length."""

    def __init__(self, lengths: list[int] | Exception) -> None:
        self.lengths = lengths

    def run(self, work: Workload, tokens: int) -> list[int]:
        if isinstance(self.lengths, Exception):
            raise self.lengths
        return self.lengths


def test_tokens_are_counted_exactly() -> None:
    beams = serve.timed(Decoder([5] * 16), WORK, 5)
    assert (beams["tokens"], set(beams)) == (16 * 4 * 5, {"seconds", "tokens"})
    samples = next(w for w in WORKLOADS if w.kind == "sample" and len(w.lengths) == 1)
    assert serve.timed(Decoder([5] * samples.rows), samples, 5)["tokens"] == samples.rows * 5
    assert "not 16 sequences of 5 tokens" in serve.timed(Decoder([5] * 15 + [4]), WORK, 5)["failed"]
    assert "not 16 sequences of 5 tokens" in serve.timed(Decoder([5] * 15), WORK, 5)["failed"]


def test_errors_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.timed(Decoder(NotImplementedError("no beams")), WORK, 5) == {"refused": "no beams"}
    assert serve.timed(Decoder(ValueError("so\nit is")), WORK, 5) == {"failed": "ValueError: so it is"}
    assert "Traceback" in capsys.readouterr().err


CHILD = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(json.dumps({"versions": {"x": "1"}}), flush=True)
for line in sys.stdin:
    if "beam8" in line:
        sys.exit()
    if "sample" in line:
        child.wait()
    print(json.dumps({"seconds": 1.0, "tokens": child.pid, "line": line}), flush=True)
"""


def state(pid: int) -> str:
    """As the kernel names it: T is stopped; none where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def until(pid: int, wanted: str) -> bool:
    """Whether the kernel comes to that within a while."""
    end = time.monotonic() + 20
    while state(pid) not in wanted.split("|") and time.monotonic() < end:
        time.sleep(0.001)
    return state(pid) in wanted.split("|")


@pytest.fixture
def side() -> Iterator[Side]:
    made = Side("vllm", [sys.executable, "-c", CHILD], limit_s=60.0)
    yield made
    made.close()


def test_a_side_is_stopped_with_its_children_while_it_is_not_asked(side: Side) -> None:
    answer = side.run(WORK, 7)
    assert (side.versions, answer["line"]) == ({"x": "1"}, f"{WORK.name} 7\n")
    assert until(answer["tokens"], "T")
    assert side.run(WORK, 7)["tokens"] == answer["tokens"]
    side.close()
    assert until(answer["tokens"], "|Z")


def test_how_threads_wait_is_each_side_s_own_choice() -> None:
    assert own_environment({"OMP_WAIT_POLICY": "passive", "HOME": "h"}) == {"HOME": "h"}


def test_a_side_that_ends_is_named_from_then_on(side: Side) -> None:
    beam8 = next(w for w in WORKLOADS if w.name.startswith("beam8"))
    assert side.run(beam8, 1) == side.run(WORK, 1) == {"failed": "its process ended"}


def test_a_side_that_does_not_answer_is_ended() -> None:
    side = Side("vllm", [sys.executable, "-c", CHILD], limit_s=0.2)
    sample = next(w for w in WORKLOADS if w.kind == "sample")
    assert side.run(sample, 1) == side.run(WORK, 1) == {"failed": "no answer in 0 s"}
    side.close()


def test_the_table_has_spread_losses_refusals_and_dtypes() -> None:
    def result(peer: str, dtype: str = "float32", **more: Any) -> dict[str, Any]:
        return {"workload": "beam4x16", "peer": peer, "dtype": dtype, "tokens": 64, "threads": 2, **more}

    def ratio(middle: float, low: float, high: float, goal: float | None, runs: int = 2) -> dict[str, Any]:
        speeds = {"tokens_per_second": 123.4, "peer_tokens_per_second": 5.678}
        return {"ratio": middle, "ratio_min": low, "ratio_max": high, "goal": goal, "runs": runs, **speeds}

    results = [
        result("transformers", **ratio(3.0, 2.5, 3.5, 4.0)),
        result("ctranslate2", **ratio(0.8, 0.8, 0.8, None, runs=1)),
        result("transformers_batching", refused="no beam search"),
        result("vllm_cached", failed="no answer in 600 s"),
        result("transformers", "bfloat16", **ratio(4.5, 4.0, 5.0, 4.0)),
        result("ctranslate2:batch=4", **ratio(5.0, 5.0, 5.0, None, runs=1)),
    ]
    lines = report.filled("<!-- table: throughput -->\n<!-- end -->", {"throughput": results}).splitlines()
    assert lines[4:11] == [
        "| beam4x16 | bfloat16 | 64 | transformers | 4.50x | 4.00 to 5.00 | 2 | 4x | 123 | 5.7 |",
        "| beam4x16 | float32 | 64 | transformers | 3.00x | 2.50 to 3.50 | 2 | 4x | 123 | 5.7 |",
        "| beam4x16 | float32 | 64 | ctranslate2 | **0.80x** | one pair | 1 |  | 123 | 5.7 |",
        "| beam4x16 | float32 | 64 | transformers batching | no beam search |  |  |  |  |  |",
        "| beam4x16 | float32 | 64 | vllm cached | failed: no answer in 600 s |  |  |  |  |  |",
        "| beam4x16 | float32 | 64 | ctranslate2 (batch 4) | 5.00x | one pair | 1 |  | 123 | 5.7 |",
        "",
    ]
    assert lines[11] == (
        "We are slower in: beam4x16, float32, ctranslate2 (0.80x). "
        "Below the goal: beam4x16, float32, transformers (3.00x of 4x)."
    )


def test_a_dtype_is_a_measurement_of_its_own(tmp_path: Path) -> None:
    same = {"workload": "w", "peer": "p", "tokens": 64}
    results = [{**same, "dtype": d, "n": n} for d, n in (("float32", 1), ("bfloat16", 2), ("float32", 3))]
    lines = [json.dumps({"benchmark": "throughput", "result": r}) for r in results]
    (tmp_path / "throughput.jsonl").write_text("\n".join(lines))
    assert [r["n"] for r in report.read(tmp_path)["throughput"]] == [3, 2]
