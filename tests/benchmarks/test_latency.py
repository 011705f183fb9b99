"""Latency of one request: what is asked and recorded, and that peers say when each token came."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import latency, report
from benchmarks.latency import compare, said
from benchmarks.peers import forkdecode_peer, serve, transformers_batching_peer, transformers_peer
from benchmarks.peers import started as starting
from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.workloads import ALONE, STREAM, Workload
from tests.tiny_model import save_tiny_llama

GREEDY, BEAM = ALONE


class Made:
    """A side whose tokens come after so many seconds, a run each after the warm-up."""

    ended = ""

    def __init__(self, peer: str, *seconds: tuple[float, float] | dict[str, Any]) -> None:
        self.peer, self.versions = peer, {peer: "1"}
        self.left: list[tuple[float, float] | dict[str, Any]] = [(9.0, 9.0), *seconds]
        self.asked: list[tuple[str, int]] = []

    def stream(self, work: Workload, tokens: int) -> dict[str, Any]:
        answer = self._next(STREAM, tokens)
        if isinstance(answer, dict):
            return answer
        first, between = answer
        return {"first_token": first, "between_tokens": between, "seconds": first + (tokens - 1) * between}

    def run(self, work: Workload, tokens: int) -> dict[str, Any]:
        answer = self._next("", tokens)
        return answer if isinstance(answer, dict) else {"seconds": answer[0], "tokens": 4 * tokens}

    def close(self) -> None: ...

    def _next(self, how: str, tokens: int) -> tuple[float, float] | dict[str, Any]:
        self.asked.append((how, tokens))
        return self.left.pop(0)


def compared(work: Workload, ours: Made, *others: Made, tokens: int = 11) -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = []
    compare(work, tokens, ours, others, 2, done.append)
    return done


def test_each_time_is_the_peer_s_over_ours_pair_by_pair() -> None:
    ours, other = Made("forkdecode", (1.0, 0.1), (2.0, 0.1)), Made("vllm", (3.0, 0.05), (2.0, 0.06))
    (found,) = compared(GREEDY, ours, other)
    assert ours.asked == other.asked == [(STREAM, 2), (STREAM, 11), (STREAM, 11)]
    first = {"ratio": 2.0, "ratio_min": 1.0, "ratio_max": 3.0, "ours": 1.5, "peer": 2.5}
    assert found["first_token"] == pytest.approx(first)
    assert found["between_tokens"]["ratio"] == pytest.approx(0.55)
    assert found["seconds"] == pytest.approx(
        {
            "ratio": (3.5 / 2 + 2.6 / 3) / 2,
            "ratio_min": 2.6 / 3,
            "ratio_max": 3.5 / 2,
            "ours": 2.5,
            "peer": 3.05,
        }
    )
    assert (found["runs"], found["peer_versions"], found["workload"]) == (2, {"vllm": "1"}, "greedy1x200")
    assert "first_token 2.00x (1.00 to 3.00; 1500.0 ms), between_tokens 0.55x" in said(found)


def test_of_beams_the_whole_time_is_told_and_refusals_are_results() -> None:
    ours = Made("forkdecode", (1.0, 0.0), (1.0, 0.0))
    unable = Made("transformers_batching", {"refused": "no beam search"})
    fine, refused = compared(BEAM, ours, Made("transformers", (2.0, 0.0), (4.0, 0.0)), unable)
    assert ours.asked == [("", 2), ("", 11), ("", 11)]
    assert fine["seconds"] == {"ratio": 3.0, "ratio_min": 2.0, "ratio_max": 4.0, "ours": 1.0, "peer": 3.0}
    assert "first_token" not in fine
    assert said(refused).endswith("not possible: no beam search")


def test_a_record_says_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(peer: str, command: list[str], limit: float) -> Made:
        return Made(peer, (1.0, 0.5))

    monkeypatch.setattr(starting, "Side", start)
    file = tmp_path / "latency.jsonl"
    command = "latency.py --model m --dtype float32 --threads 1 --tokens 3 --runs 1 --workload greedy1x200"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--record", str(file)])
    latency.main()
    found = json.loads(file.read_text())
    assert (found["benchmark"], found["command"]) == ("latency", command)
    told = found["result"]
    assert (told["dtype"], told["threads"], told["tokens"], told["peer"]) == ("float32", 1, 3, "transformers")
    assert told["seconds"]["ours"] == 2.0


def test_time_between_tokens_needs_two(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["latency.py", "--tokens", "1"])
    with pytest.raises(SystemExit):
        latency.main()
    assert "--tokens must be at least 2" in capsys.readouterr().err


class Streamer:
    """A peer whose tokens come at given times."""

    def __init__(self, *parts: int, error: Exception | None = None) -> None:
        self.parts, self.error = parts, error

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        arrivals.asked()
        for part in self.parts:
            arrivals.arrived(part)
        if self.error is not None:
            raise self.error


def test_arrivals_are_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 103.0, 106.0])
    with monkeypatch.context() as patched:
        patched.setattr("benchmarks.peers.arrivals.time.perf_counter", lambda: next(clock))
        # Two that come together came at one time: the mean of the waits is theirs too.
        found = serve.streamed(Streamer(1, 2, 1), GREEDY, 4)
    assert found == pytest.approx({"first_token": 2.0, "between_tokens": 4.0 / 3, "seconds": 6.0})


def test_what_a_stream_lacks_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.streamed(Streamer(1, 1), GREEDY, 3) == {"failed": "2 tokens came, not 3"}
    assert serve.streamed(Streamer(error=NotImplementedError("no")), GREEDY, 3) == {"refused": "no"}
    assert serve.streamed(Streamer(error=ValueError("x")), GREEDY, 3) == {"failed": "ValueError: x"}
    assert "Traceback" in capsys.readouterr().err


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.mark.parametrize(
    "make",
    [forkdecode_peer.Peer, transformers_peer.Peer, transformers_batching_peer.Peer],
    ids=["forkdecode", "transformers", "transformers_batching"],
)
def test_peers_hand_over_token_by_token(make: Callable[..., Any], folder: str) -> None:
    peer, arrivals = make(folder, "float32", 1), Arrivals()
    peer.stream(GREEDY, 5, arrivals)
    assert len(set(arrivals.seconds)) == 5
    assert arrivals.seconds == sorted(arrivals.seconds)
    assert arrivals.seconds[0] > 0


def table(*results: dict[str, Any]) -> list[str]:
    return report.filled("<!-- table: alone -->\n<!-- end -->", {"latency": list(results)}).splitlines()


def test_the_table_has_each_time_the_losses_and_refusals() -> None:
    def result(peer: str, work: Workload = GREEDY, **more: Any) -> dict[str, Any]:
        return {"workload": work.name, "peer": peer, "dtype": "float32", "tokens": 64, **more}

    def time(ratio: float, ours: float) -> dict[str, float]:
        return {"ratio": ratio, "ratio_min": 0.5, "ratio_max": 2.5, "ours": ours, "peer": ratio * ours}

    greedy = {"first_token": time(0.8, 0.25), "between_tokens": time(2.0, 0.02), "seconds": time(1.5, 1.51)}
    lines = table(
        result("transformers_batching", BEAM, refused="no beam search"),
        result("vllm", **greedy, runs=2),
        result("ctranslate2", BEAM, seconds=time(1.25, 2.0), runs=1),
        result("vllm_cached", BEAM, failed="no answer in 9 s"),
    )
    assert lines[4:10] == [
        "| greedy1x200 | float32 | 64 | vllm | first token | **0.80x** | 0.50 to 2.50 | 2 | 250 | 200 |",
        "| greedy1x200 | float32 | 64 | vllm | each further token | 2.00x | 0.50 to 2.50 | 2 | 20.0 | 40.0 |",
        "| greedy1x200 | float32 | 64 | vllm | last token | 1.50x | 0.50 to 2.50 | 2 | 1,510 | 2,265 |",
        "| beam4x200 | float32 | 64 | transformers batching |  | no beam search |  |  |  |  |",
        "| beam4x200 | float32 | 64 | ctranslate2 | last token | 1.25x | one pair | 1 | 2,000 | 2,500 |",
        "| beam4x200 | float32 | 64 | vllm cached |  | failed: no answer in 9 s |  |  |  |  |",
    ]
    assert lines[11] == "We are slower in: greedy1x200, float32, vllm, first token (0.80x)."
