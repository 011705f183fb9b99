"""The shared record format: what a record says, and what it does not."""

from __future__ import annotations

import json
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from benchmarks.record import command_of, commit, machine, record


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/growth.py", "--model", "/somewhere/small", "--seed", "7"])


def test_a_record_says_what_was_measured_where_and_how(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    result = {"seed": 7, "ms": 1.5}
    returned = [record("growth", result, file), record("growth", {"ms": 2.5}, file)]
    first, second = map(json.loads, file.read_text().splitlines())
    assert [first, second] == returned
    assert first["benchmark"] == "growth"
    assert first["result"] == result
    assert (first["seed"], second["seed"]) == (7, None)
    assert first["versions"].keys() == {"forkdecode", "torch", "transformers", "numpy"}
    assert first["versions"]["forkdecode"] == version("forkdecode")
    assert {**first["machine"], "load": 0} == {**machine(), "load": 0}
    assert first["commit"] == commit()


def test_a_command_names_no_place_of_the_machine(tmp_path: Path) -> None:
    assert record("growth", {}, tmp_path / "r.jsonl")["command"] == "growth.py --model small --seed 7"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--peers /there/envs --peer vllm ctranslate2 --record r.jsonl", "--peer vllm ctranslate2"),
        ("--model /there/m --find --rate 1 2 --checkpoint=c.txt", "--model m --find --rate 1 2"),
        ("soak --model=../m --log soak.log --seconds 60", "soak --model=m --seconds 60"),
        ("wide --catalogue /there/c --width 4", "wide --width 4"),
        ("memory /there/positional", "memory"),
        ("--model smollm2-135m-instruct", "--model smollm2-135m-instruct"),
    ],
    ids=["peers", "model", "equals signs", "a folder", "positional", "a model by name"],
)
def test_what_says_where_something_lies_is_left_out(given: str, kept: str) -> None:
    assert command_of(["/there/serving.py", *given.split()]) == f"serving.py {kept}"


def test_a_model_s_folder_may_be_named_anew() -> None:
    for command in ("growth.py --model /there/m --seed 1", "growth.py --model m --seed 1"):
        assert command_of(command.split(), "named") == "growth.py --model named --seed 1"
    assert command_of(["growth.py", "--model=/there/m"], "named") == "growth.py --model=named"
    assert command_of(["growth.py", "--seed", "1"], "named") == "growth.py --seed 1"


def test_without_a_file_a_record_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = record("growth", {"ms": 1}, None)
    assert json.loads(capsys.readouterr().out) == found


def test_a_commit_is_that_of_a_checkout_and_says_where_files_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        run = subprocess.run(
            ["git", "-C", str(tmp_path), *who, *words], capture_output=True, text=True, check=True
        )
        return run.stdout.strip()

    file = tmp_path / "record.py"
    file.write_text("1")
    monkeypatch.setattr("benchmarks.record.__file__", str(file))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit() is None
    git("init"), git("add", "record.py"), git("commit", "-m", "one")
    assert commit() == git("rev-parse", "--short=9", "HEAD")
    file.write_text("2")
    assert commit() == git("rev-parse", "--short=9", "HEAD") + "+"


def test_a_machine_is_told_by_what_it_can_do() -> None:
    found = machine()
    assert found.keys() == {"cpu", "cores", "features", "python", "load"}
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert found["cpu"]
