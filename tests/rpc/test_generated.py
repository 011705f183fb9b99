"""The committed code is what the pinned generator makes of the protocol."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTO = ROOT / "proto"
FILES = ("decode_pb2.py", "decode_pb2.pyi", "decode_pb2_grpc.py")


def pinned() -> str:
    """The generator's version in the dev requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [found] = [one for one in project["optional-dependencies"]["dev"] if one.startswith("grpcio-tools==")]
    return str(found).partition("==")[2]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert version("grpcio-tools") == pinned(), "install the dev requirements"
    out = tmp_path_factory.mktemp("generated")
    sources = [str(path) for path in sorted(PROTO.rglob("*.proto"))]
    kinds = [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *kinds, *sources], check=True)
    return out / "forkdecode" / "rpc" / "v1"


@pytest.mark.parametrize("name", FILES)
def test_the_committed_code_is_up_to_date(generated: Path, name: str) -> None:
    committed = ROOT / "forkdecode" / "rpc" / "v1" / name
    assert committed.read_text() == (generated / name).read_text(), "run the generator: docs/protocol.md"


def test_nothing_else_is_generated(generated: Path) -> None:
    assert {path.name for path in generated.iterdir()} == set(FILES)
