"""Exit codes and one-line errors."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from forkdecode.cli import app as commands
from forkdecode.cli.constraints import CONSTRAINT_FIELDS
from forkdecode.cli.flags import ENGINE_FLAGS, OPTION_FLAGS, STRATEGY_FLAGS
from forkdecode.cli.requests import STRATEGIES
from forkdecode.cli.server_flags import SERVER_FIELDS, server_parameters
from forkdecode.config import EngineConfig, parse_bytes
from forkdecode.engine.patience import Patience
from forkdecode.engine.rotation import Rotation
from forkdecode.server.settings import ServerSettings, TreeSettings
from forkdecode.types import OPTION_NAMES
from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decode"], "prompts: none given"),
        (["decode", "hi", "--output", "x"], "prompts: --input and --output are for files"),
        (
            ["decode", "hi", "--strategy", "magic"],
            "strategy: 'magic' is unknown; allowed: greedy, sample, best-of",
        ),
        (
            ["decode", "hi", "--width", "4"],
            "width: is not an option of strategy 'greedy'; allowed: with strategy beam or diverse-beam",
        ),
        (
            ["decode", "hi", "--strategy", "beam", "--top-k", "4"],
            "top_k: is not an option of strategy 'beam'",
        ),
        (["decode", "hi", "--strategy", "beam", "--width", "0"], "width: 0 is out of range"),
        (["decode", "hi", "--strategy", "beam", "--widths", "4;2"], "widths: '4;2' is not a list of widths"),
        (["decode", "hi", "--strategy", "beam", "--scorer", "best"], "scorer: 'best' is not a scorer"),
        (["decode", "hi", "--strategy", "beam", "--scorer", "{"], "scorer: is not JSON"),
        (["decode", "hi", "--strategy", "diverse-beam", "--groups", "3"], "groups: 3 does not divide"),
        (
            ["decode", "hi", "--strategy", "sample", "--n", "2", "--temperature", "0"],
            "temperature: 0 would make",
        ),
        (
            ["decode", "hi", "--strategy", "beam", "--early-stopping", "maybe"],
            "early_stopping: 'maybe' is unknown",
        ),
        (
            ["decode", "hi", "--logit-bias", "abc"],
            "logit_bias: 'abc' is not a bias; allowed: TOKEN_ID=NUMBER",
        ),
        (["decode", "hi", "--max-tokens", "0"], "max_tokens: 0 is out of range"),
        (["decode", "hi", "--max-tokens", "many"], "--max-tokens"),
        (["decode", "hi", "--frobnicate"], "No such option: --frobnicate"),
        (["decode", "--input", "/nowhere.jsonl", "--output", "x"], "/nowhere.jsonl"),
        (["decode", "hi", "--overwrite"], "--overwrite: has no effect here; allowed: with --output"),
        (["decode", "hi", "--logprobs", "0"], "--logprobs: has no effect here; allowed: with --json"),
        (
            ["decode", "--input", __file__, "--output", "x", "--stats"],
            "--stats: has no effect here; allowed: ",
        ),
        (["decode", "--input", __file__, "--output", "x", "--json"], "--json: has no effect here; allowed: "),
        (["demo", "--width", "4"], "No such option: --width"),
        (["transmogrify"], "No such command 'transmogrify'"),
    ],
)
def test_wrong_usage_is_code_2_and_one_line(cli: Cli, arguments: list[str], message: str) -> None:
    ran = cli(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert ran.err.startswith("forkdecode: ")
    assert message in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--block-size", "3"], "block_size: 3 is not a power of two"),
        (["--kv-memory", "lots"], "kv_memory: 'lots' is not a size"),
        (["--dtype", "int8"], "dtype: 'int8' is unknown"),
        (["--device", "abacus"], "device: 'abacus' is unknown"),
        (["--preemption", "never"], "preemption: 'never' is unknown"),
    ],
)
def test_wrong_settings_of_the_engine_are_usage(
    cli: Cli, model: str, arguments: list[str], message: str
) -> None:
    ran = cli("decode", "hi", "--model", model, *arguments)
    assert ran.code == 2
    assert message in ran.error_lines[0]
    assert "Traceback" not in ran.err


def test_a_model_that_is_not_there_is_a_failure(cli: Cli) -> None:
    ran = cli("decode", "hi", "--model", "./nowhere")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "forkdecode: model: no file or folder './nowhere'\n"


def test_a_prompt_the_model_cannot_take_is_usage(cli: Cli, model: str) -> None:
    ran = cli("decode", "hello", "--model", model, "--max-tokens", "512")
    assert ran.code == 2
    assert ran.error_lines[0].startswith("forkdecode: max_tokens: 512")


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "given", lambda flags: 1 / 0)
    ran = cli("decode", "hi")
    assert (ran.code, ran.err) == (
        1,
        "forkdecode: ZeroDivisionError: division by zero (--debug shows where)\n",
    )
    with pytest.raises(ZeroDivisionError):
        cli("decode", "hi", "--debug")


def test_every_command_has_debug(cli: Cli) -> None:
    for command in (["decode"], ["demo"], ["models"], ["serve"], ["replay"], ["tree", "show"]):
        assert "--debug" in cli(*command, "--help").out, command


def test_help_and_version(cli: Cli) -> None:
    for arguments in (["--help"], ["decode", "--help"], ["demo", "--help"], ["models", "--help"]):
        ran = cli(*arguments)
        assert ran.code == 0
        assert "Usage: forkdecode" in ran.out
    assert cli("--version").out.startswith("forkdecode 0.")
    assert cli().code == 2


def test_a_servers_flags_have_the_defaults_of_its_records(cli: Cli) -> None:
    parameters = {one.name: one for one in server_parameters()}
    assert set(SERVER_FIELDS) < set(parameters)
    for flag, (owner, name) in SERVER_FIELDS.items():
        default = {one.name: one.default for one in dataclasses.fields(owner)}[name]
        told = parameters[flag].default
        if flag == "max_request_size":
            assert parse_bytes(flag, told) == default
        else:
            assert told == (None if default is dataclasses.MISSING else default), flag
    shown = cli("serve", "--help").out
    for default in ("127.0.0.1:50051", "4MiB", "1024", "30.0", "600.0", "256", "60.0", "3600.0"):
        assert f"[default: {default}]" in shown


def test_every_field_of_a_servers_records_has_a_flag() -> None:
    for kind, others in (
        (ServerSettings, {"tls", "tokens", "trees"}),
        (TreeSettings, {"limits"}),
        (Patience, set()),
        (Rotation, set()),
    ):
        flagged = {field for owner, field in SERVER_FIELDS.values() if owner is kind}
        assert flagged | others == {one.name for one in dataclasses.fields(kind)}


def test_every_field_has_a_flag_and_every_flag_a_field() -> None:
    strategies = {f.name for kind in STRATEGIES.values() for f in dataclasses.fields(kind)}
    assert set(STRATEGY_FLAGS) == strategies | {"strategy"}
    assert set(OPTION_FLAGS) == {*OPTION_NAMES, *CONSTRAINT_FIELDS} - {
        "constraint",
        "prefix_allowed_tokens_fn",
    }
    settings = {f.name for f in dataclasses.fields(EngineConfig)}
    llm = {"model", "dtype", "device", "threads", "max_positions", "catalogues"}
    assert set(ENGINE_FLAGS) == settings | llm


def test_models_says_what_is_cached(cli: Cli, tmp_path: Path) -> None:
    ran = cli("models")
    assert ran.code == 0
    assert "smollm2-135m-instruct" in ran.out
    assert "not downloaded yet" in ran.out
    assert '"size": null' in cli("models", "--json").out
