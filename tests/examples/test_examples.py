"""Each example runs, on a tiny model, and shows what it says."""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forkdecode import LLM
from forkdecode.model.default_model import SMOLLM2
from tests.server.servers import running_server
from tests.tiny_model import save_tiny_llama

FOLDER = Path(__file__).parents[2] / "examples"
SPENT = r"^\d+ tokens in \d+ branches, \d+ of them finished\n"
BEST = r"(\d\.\d\d [\"'].*|none is whole)\n$"
SHOWN = {
    "async_many": r"(red|green|blue|white|black): '.*'\n" * 5,
    "beam": r"1\. -\d+\.\d+ '.*'\n2\. (.*\n)3\. (.*\n)4\. ",
    "best_of_scorer": r"[01]\.\d\d '(.|\n)*\n[01]\.\d\d '",
    "catalogue": r"Beam\(5\): 5 titles\n(  .*\n){5}Diverse.*: 6 titles\n(  .*\n){5}Beam.*: 14 .* are",
    "chat": r"bees make.*\n  0 of \d+ prompt.*\n(.*\n)  [1-9]\d* of \d+ .* cached\n(.*\n)  [1-9]",
    "live_beams": r"\d+ of \d+ characters were final before the end\n(\d\. -\d+\.\d+ .*\n){4}",
    "logprobs": r"('.*' -\d+\.\d\d \(after the penalty -?\d+\.\d\d\); .*, .*, .*\n)+",
    "mixed_batch": r"Greedy: .*\nSample: .*\nBestOf: .*\nBeam: .*\nthe samples are the same alone: True",
    "rollouts": r"(round \d: mean reward \d+\.\d\d; engine and policy are 0\.00\d apart\n){3}$",
    "samples": r"0: .*\n1: .*\n2: .*\n3: .*\nthe same again: True",
    "search_ab_mcts": SPENT + r"(\d\.\d at depth \d: .*\n)*$",
    "search_adaptive": SPENT + r"(.*: \d+ votes\n)*the first is ahead with a confidence of 0\.\d{3}",
    "search_best_of_n": SPENT + r"(.*: weight \d\.\d\d of \d+ answers\n)*\d+ answers are unfinished",
    "search_dvts": SPENT + BEST,
    "search_mcts": SPENT + r"(  \d+ visits, value \d\.\d\d: .*\n)+" + BEST,
    "search_rebase": SPENT + BEST,
    "search_self_consistency": SPENT + r"(.*: \d+ votes\n)*\d+ answers are unfinished",
    "search_step_beam": SPENT + BEST,
    "self_consistency": r"(\d+: \d+ of 16 chains\n)*\d+ chains reach no number\nthe .* [5-9]\d% of",
    "shaping": r"(eos|stop|length): [\"']Today",
    "sharing": r"blocks of 16.*\n\d+ blocks without sharing, \d+ with\n[5-9]\d% saved over time, \d+ ",
    "stream": r"\d+ prompt tokens\n(\[[01]\] .*\n)+\[[01]\] ends: (length|eos)\n(.*\n)*\d+ tokens generated",
    "structured_output": r"Sample\n(  (.*, founded in \d+, on .*|cut off: .*)\n){3}Beam\n(  .*\n){2}$",
    "translate_beam": r"Good morning\.\n(  -\d+\.\d+ .*\n){3}Where is .*\n(  .*\n){3}I would .*\n(  .*\n){3}",
    "uncertainty": r"(.*\?.*\n|Name .*\n)  \d+ of 16 say .*; entropy \d\.\d\d bits\n  mean .* -\d.*, spread",
}
SHARED = {"egg_task", "searching", "sum_task"}
"""What searches import, and nothing runs by itself."""
REMOTE = ["best_of_scorer", "live_beams", "self_consistency", "translate_beam", "uncertainty"]
REMOTE += [name for name in SHOWN if name.startswith("search_")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=1024))


@pytest.fixture(scope="module")
def address(model: str) -> Iterator[str]:
    with LLM(model, num_blocks=2048, threads=1) as llm, running_server(llm) as running:
        yield running.address


def test_every_example_is_checked_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - SHARED == set(SHOWN)


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_example(
    name: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(name, [model], monkeypatch)
    assert re.search(SHOWN[name], capsys.readouterr().out)


@pytest.mark.parametrize("name", REMOTE)
def test_example_by_a_server(
    name: str, address: str, model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(name, ["--server", address], monkeypatch)
    remote = capsys.readouterr().out
    assert re.search(SHOWN[name], remote)
    show(name, [model], monkeypatch)
    assert capsys.readouterr().out == remote


@pytest.fixture(scope="module")
def real_address() -> Iterator[str]:
    """Before the default model, where it is on this machine already: no test fetches it."""
    if not SMOLLM2.is_cached:
        pytest.skip(f"{SMOLLM2.name} is not in the cache, where its first use puts it")
    with LLM(threads=1) as llm, running_server(llm) as running:
        yield running.address


SUM = r"\n1\.00 '8 \+ 5 = 13\\n13 \+ 4 = 17\\n'\n$"
SOLVED: dict[tuple[str, ...], str] = {
    ("search_ab_mcts",): r"finished\n1\.0 at depth \d: ",
    ("search_adaptive",): r"finished\n12: \d+ votes\n",
    ("search_best_of_n",): r"finished\n12: weight ",
    ("search_dvts",): SUM,
    ("search_mcts",): SUM,
    ("search_mcts", "--select", "uct"): SUM,
    ("search_rebase",): SUM,
    ("search_self_consistency",): r"finished\n12: \d+ votes\n",
    ("search_step_beam",): SUM,
}
"""The right answer, as the real model finds it by each search."""


def test_every_search_is_checked_with_the_real_model() -> None:
    assert {name for name, *_ in SOLVED} == {name for name in SHOWN if name.startswith("search_")}


@pytest.mark.parametrize("command", SOLVED, ids=" ".join)
def test_a_search_of_the_real_model(
    command: tuple[str, ...],
    real_address: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, *flags = command
    show(name, ["--server", real_address, *flags], monkeypatch)
    shown = capsys.readouterr().out
    assert re.search(SHOWN[name], shown)
    assert re.search(r"^[1-9]\d* tokens in [1-9]\d* branches, [1-9]\d* of them finished", shown), shown
    assert re.search(SOLVED[command], shown), shown


def show(name: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(FOLDER))  # as `python examples/NAME.py` has it
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
