"""A tiny model folder, and the command line run in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from forkdecode.cli.run import run_command
from tests.tiny_model import save_tiny_llama


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def error_lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("forkdecode: ")]


Cli = Callable[..., Ran]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    monkeypatch.setenv("FORKDECODE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = run_command(arguments)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def model_1k(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same with room for the demo's prompts, which are a token a byte to it."""
    return str(save_tiny_llama(tmp_path_factory.mktemp("models") / "long", max_position_embeddings=1024))
