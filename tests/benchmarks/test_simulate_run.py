"""Systems of the simulator by hand: who reads a prompt how often, what is copied, the host's time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import simulate, simulate_model
from benchmarks.memory_trace import Trace
from benchmarks.simulate_cost import ACCELERATORS, MODELS, CostModel, Host, StepWork
from benchmarks.simulate_load import SYSTEMS, Load
from benchmarks.simulate_run import Simulation
from benchmarks.simulate_served import Target

COST = CostModel(ACCELERATORS["h200"], MODELS["8b"])
PROMPT, WIDTH = 40, 3


@pytest.fixture(autouse=True)
def few_ladders(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw all that a long run needs takes half a second."""
    monkeypatch.setattr(simulate_model, "LADDERS", 16)


def seconds(system: str, tokens: int, host: Host | None = None) -> float:
    """Of one request alone with this prompt, and so many tokens a sample."""
    load = Load(Trace("one", PROMPT, tokens), "sample", WIDTH, count=1, rate=0.0)
    return (
        Simulation(
            SYSTEMS[system], load, COST, sharpness=simulate.SHARPNESS, target=Target(2.0, 0.05), host=host
        )
        .run()
        .now
    )


def prompt(copied: int = 0) -> StepWork:
    """Its last token is a row that decodes, and reads all of it once more."""
    return StepWork(PROMPT, 1, 2 * PROMPT - 1, PROMPT * (PROMPT + 1) // 2, copied_tokens=copied)


@pytest.mark.parametrize(
    ("system", "work"),
    [
        ("forest", prompt()),
        ("paged", prompt()),
        ("copied", prompt((WIDTH - 1) * PROMPT)),
        ("unshared", prompt() * WIDTH),
        ("exact", prompt() * WIDTH),
    ],
    ids=["forest", "paged", "copied", "unshared", "exact"],
)
def test_a_prompt_is_read_once_or_by_each_row(system: str, work: StepWork) -> None:
    assert seconds(system, tokens=1) == pytest.approx(COST.seconds(work).total)


def test_rows_that_copied_their_prompt_decode_as_if_they_had_read_it() -> None:
    decoding = [seconds(system, 5) - seconds(system, 1) for system in ("copied", "unshared")]
    assert decoding[0] == pytest.approx(decoding[1])


def test_the_hosts_time_is_a_steps_a_groups_and_a_requests() -> None:
    """Four tokens are as many steps, the first of which reads the prompt."""
    for system in ("forest", "copied"):
        spent = seconds(system, 4, Host(0.001, 0.01, 0.1)) - seconds(system, 4)
        assert spent == pytest.approx(4 * 0.011 + 0.1)


def test_an_overload_is_not_given_up_before_the_last_has_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same load, most of whose requests are late, with and without the option."""
    command = ["simulate", "--trace", "brief", "--width", "2", "--system", "contiguous", "--seconds", "1"]
    command += ["--rate", "600", "--first-target", "0.02", "--host-us", "20000", "10", "0"]
    found = []
    for more in ([], ["--overload"]):
        file = tmp_path / f"{len(more)}.jsonl"
        monkeypatch.setattr("sys.argv", [*command, *more, "--record", str(file)])
        simulate.main()
        found.append(json.loads(file.read_text())["result"])
    given_up, overloaded = found
    assert overloaded["left"] > 0 < given_up["left"]
    assert overloaded["finished"] > given_up["finished"] > 0
    assert overloaded["window_seconds"] > 0.7 > given_up["window_seconds"]
    assert overloaded["met"] < simulate.ATTAINED > given_up["met"]
    assert overloaded["host_us"] == "20000/10/0"
    assert overloaded["time_shares"]["host"] > 0


def test_an_overload_needs_arrivals_that_last(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (["--rate", "5"], ["--seconds", "3"], ["--seconds", "3", "--rate", "5", "--find"]):
        monkeypatch.setattr("sys.argv", ["simulate", "--overload", *command])
        with pytest.raises(SystemExit, match="--overload needs"):
            simulate.main()
