"""`forkdecode decode PROMPT`: what it prints, against the SDK."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from forkdecode import LLM, Beam, BestOf, DiverseBeam, Greedy, LengthNormalised, Sample, StochasticBeam
from forkdecode.cli.live_beams import watch_beams
from forkdecode.types import Options, Strategy
from tests.cli.conftest import Cli

PROMPT = "hello world, hello"
MAIN = "from forkdecode.cli import main; main()"
STRATEGIES = [
    ([], Greedy()),
    (["--strategy", "sample", "--n", "3", "--seed", "7", "--top-k", "20"], Sample(n=3, seed=7, top_k=20)),
    (["--strategy", "best-of", "--best-of", "4", "--n", "2", "--seed", "1"], BestOf(best_of=4, n=2, seed=1)),
    (
        ["--strategy", "beam", "--width", "3", "--length-penalty", "0.5", "--early-stopping", "true"],
        Beam(width=3, length_penalty=0.5, early_stopping=True),
    ),
    (
        ["--strategy", "beam", "--width", "4", "--widths", "2,4,3", "--sibling-penalty", "0.5"],
        Beam(width=4, widths=(2, 4, 3), sibling_penalty=0.5),
    ),
    (
        [
            "--strategy",
            "diverse-beam",
            "--width",
            "6",
            "--groups",
            "3",
            "--diversity-penalty",
            "1.5",
            "--scorer",
            "length_normalised",
        ],
        DiverseBeam(width=6, groups=3, diversity_penalty=1.5, scorer=LengthNormalised()),
    ),
    (
        ["--strategy", "stochastic-beam", "--width", "3", "--seed", "7", "--temperature", "0.9"],
        StochasticBeam(width=3, seed=7, temperature=0.9),
    ),
]


@pytest.fixture(scope="module")
def llm(model: str) -> Any:
    with LLM(model, dtype="float32", num_blocks=200) as opened:
        yield opened


@pytest.mark.parametrize(("flags", "strategy"), STRATEGIES)
def test_json_is_what_the_sdk_returns(
    cli: Cli, llm: LLM, model: str, flags: list[str], strategy: Strategy
) -> None:
    expected = llm.decode(PROMPT, strategy, max_tokens=8, logprobs=2)
    ran = cli(
        "decode", PROMPT, *flags, "--model", model, "--dtype", "float32", "--num-blocks", "200",
        "--max-tokens", "8", "--logprobs", "2", "--json",
    )  # fmt: skip
    assert ran.code == 0
    record = json.loads(ran.out)
    assert record["strategy"] == type(strategy).__name__
    assert [c["token_ids"] for c in record["candidates"]] == [list(c.token_ids) for c in expected.candidates]
    assert [c["text"] for c in record["candidates"]] == [c.text for c in expected.candidates]
    assert [c["score"] for c in record["candidates"]] == [c.score for c in expected.candidates]
    assert len(record["candidates"][0]["logprobs"][0]["top"]) == 2
    assert record["usage"]["generated_tokens"] == expected.usage.generated_tokens


def test_one_candidate_is_streamed_as_text(cli: Cli, llm: LLM, model: str) -> None:
    ran = cli("decode", PROMPT, "--model", model, "--dtype", "float32", "--max-tokens", "12")
    assert ran.out == llm.decode(PROMPT, max_tokens=12).text + "\n"
    assert "tokens" in ran.err  # the capacity, before anything else
    assert "beams of 4" in ran.err


@pytest.mark.parametrize("flags", [["--num-return-sequences", "1"], ["--width", "1"]], ids=str)
def test_one_returned_beam_is_streamed_as_text(cli: Cli, llm: LLM, model: str, flags: list[str]) -> None:
    ran = cli(
        "decode", PROMPT, "--strategy", "beam", *flags, "--model", model, "--dtype", "float32",
        "--max-tokens", "12", "--update-every", "2", "--update-beams", "0",
    )  # fmt: skip
    width = 1 if "--width" in flags else 4
    assert ran.out == llm.decode(PROMPT, Beam(width), max_tokens=12).text + "\n"


def test_one_stochastic_sequence_is_streamed_as_text(cli: Cli, llm: LLM, model: str) -> None:
    ran = cli(
        "decode", PROMPT, "--strategy", "stochastic-beam", "--width", "1", "--seed", "3",
        "--model", model, "--dtype", "float32", "--max-tokens", "12", "--update-every", "2",
    )  # fmt: skip
    assert ran.code == 0
    expected = llm.decode(PROMPT, StochasticBeam(1, seed=3), max_tokens=12)
    assert ran.out == expected.text + "\n"


def test_updates_are_of_beams(cli: Cli, model: str) -> None:
    ran = cli("decode", PROMPT, "--model", model, "--update-beams", "3")
    assert ran.code == 2
    assert ran.error_lines[0].startswith(
        "forkdecode: update_beams: 3 applies only to beam strategies, not to Greedy"
    )


def test_a_terminal_shows_beams_as_they_run(llm: LLM) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100, height=50)
    strategy, options = Beam(3), Options(max_tokens=8, forced_prefix="hello ", update_beams=0)
    result = watch_beams(llm, PROMPT, strategy, options, console, chat=False)
    assert result.candidates == llm.decode(PROMPT, strategy, options=options).candidates
    assert "hello " in screen.getvalue()
    assert "…" in screen.getvalue()


def test_options_reach_the_engine(cli: Cli, llm: LLM, model: str) -> None:
    options = Options(
        max_tokens=10, min_tokens=4, bad_words=("o",), logit_bias={5: 3.0}, forced_prefix="hello"
    )
    flags = [
        "--max-tokens",
        "10",
        "--min-tokens",
        "4",
        "--bad-word",
        "o",
        "--logit-bias",
        "5=3",
        "--forced-prefix",
    ]
    ran = cli("decode", PROMPT, *flags, "hello", "--model", model, "--dtype", "float32", "--json")
    expected = llm.decode(PROMPT, options=options).candidates[0]
    assert json.loads(ran.out)["candidates"][0]["token_ids"] == list(expected.token_ids)
    assert expected.text.startswith("hello")


def test_several_prompts_are_printed_in_order(cli: Cli, llm: LLM, model: str) -> None:
    prompts = ["hello", "world", "hell"]
    ran = cli("decode", *prompts, "--model", model, "--dtype", "float32", "--max-tokens", "5", "--json")
    texts = [json.loads(line)["candidates"][0]["text"] for line in ran.out.splitlines()]
    assert texts == [result.text for result in llm.decode(prompts, max_tokens=5)]
    table = cli("decode", *prompts, "--model", model, "--max-tokens", "5").out
    assert [table.index(p) for p in ("hello\n", "world\n", "hell\n")] == sorted(
        table.index(p) for p in ("hello\n", "world\n", "hell\n")
    )


def test_chat_uses_the_template(cli: Cli, llm: LLM, model: str) -> None:
    ran = cli(
        "decode", PROMPT, "--chat", "--model", model, "--dtype", "float32", "--max-tokens", "5", "--json"
    )
    expected = llm.decode([{"role": "user", "content": PROMPT}], max_tokens=5)
    assert json.loads(ran.out)["prompt_tokens"] == expected.usage.prompt_tokens
    assert json.loads(ran.out)["candidates"][0]["text"] == expected.text


def test_a_dash_reads_stdin(cli: Cli, llm: LLM, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(f"\ufeff{PROMPT}\n\n".encode()), "utf-8")
    monkeypatch.setattr(sys, "stdin", stdin)
    ran = cli("decode", "-", "--model", model, "--dtype", "float32", "--max-tokens", "5", "--json")
    expected = llm.decode(f"{PROMPT}\n", max_tokens=5)
    assert json.loads(ran.out)["prompt_tokens"] == expected.usage.prompt_tokens
    assert json.loads(ran.out)["candidates"][0]["text"] == expected.text


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_bytes_that_are_no_text_are_told_as_what_they_are(
    cli: Cli, model: str, monkeypatch: pytest.MonkeyPatch, errors: str
) -> None:
    """How stdin is read is the locale's choice; arguments are always read the second way."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), "utf-8", errors))
    for prompt in ("-", os.fsdecode(b"caf\xe9")):
        ran = cli("decode", prompt, "--model", model)
        assert ran.code == 2
        assert re.search(r"prompt: .*not UTF-8", ran.err)


def test_stats_go_to_stderr(cli: Cli, model: str) -> None:
    ran = cli(
        "decode",
        "hello " * 20,
        "--model",
        model,
        "--strategy",
        "beam",
        "--max-tokens",
        "6",
        "--stats",
        "--json",
    )
    assert "copy-on-write copies" in ran.err
    assert "saved over time" in ran.err
    assert len(ran.out.splitlines()) == 1


def test_markup_in_a_text_is_no_markup(cli: Cli, model: str) -> None:
    ran = cli("decode", "[bold]", "[/nope]", "--model", model, "--max-tokens", "3")
    assert ran.code == 0
    assert "[bold]" in ran.out
    assert "[/nope]" in ran.out


def test_a_reader_that_leaves_is_no_traceback(model: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAIN, "decode", "hello", "--model", model, "--max-tokens", "5", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        err = process.stderr.read()
    assert "Traceback" not in err
    assert process.returncode == 1


def test_ctrl_c_ends_at_once_and_cleanly(tmp_path: Path, model: str) -> None:
    lines = [json.dumps({"prompt": "hello", "max_tokens": 400, "ignore_eos": True}) for _ in range(200)]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines))
    # A job that a shell put in the background inherits an ignored SIGINT, and so would the command here.
    heed = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    command = [sys.executable, "-c", heed + MAIN, "decode", "--input", str(source), "--output", str(output)]
    with subprocess.Popen([*command, "--model", model], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "tokens" not in process.stderr.readline():  # the capacity: the engine runs
            pass  # kernels are compiled
        process.send_signal(signal.SIGINT)
        err = process.stderr.read()
    assert process.returncode == 130
    assert err.startswith("interrupted after ")
    assert len(err.splitlines()) == 1
    assert all(json.loads(line)["candidates"] for line in output.read_text().splitlines())
