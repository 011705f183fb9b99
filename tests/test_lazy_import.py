"""Strategies, options and errors cost no torch: it is imported with the first LLM. Clients never do."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "numpy", "numba", "triton", "llvmlite", "psutil")
PROGRAM = """
import sys
import forkdecode
from forkdecode import Beam, Options, InvalidRequestError
Beam(4), Options(stop="a"), forkdecode.EngineConfig()
try:
    Beam(0)
except InvalidRequestError:
    pass
heavy = {"torch", "transformers", "numba", "triton", "tokenizers", "grpc"} & set(sys.modules)
assert not heavy, heavy
assert set(forkdecode.__all__) <= set(dir(forkdecode))
try:
    forkdecode.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
else:
    raise AssertionError
"""
CLIENT = """
import importlib.abc, importlib.metadata, sys

ALLOWED = set({allowed!r})
NAMES = importlib.metadata.packages_distributions()

class OnlyThese(importlib.abc.MetaPathFinder):
    '''Nothing but the standard library, forkdecode, and the packages that are allowed.'''

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top == "forkdecode":
            return None
        owners = {{owner.lower().replace("_", "-") for owner in NAMES.get(top, ())}}
        if top == "google":  # a folder of two packages
            owner = "protobuf" if name.startswith("google.protobuf") else "googleapis-common-protos"
            owners = {{owner}} if "." in name else owners
        if not owners & ALLOWED:
            raise ModuleNotFoundError(f"{{name}} is not of the light install", name=name)
        return None

sys.meta_path.insert(0, OnlyThese())
import asyncio
import forkdecode
from forkdecode import AsyncClient, Beam, BestOf, Client, Tls, UnavailableError
from forkdecode.search import Mcts, StepBeam, YesNoScorer, run

client = Client("127.0.0.1:9", retries=0)
for call in (
    lambda: client.decode("a", Beam(width=2)),
    lambda: client.decode([[1, 2], [3]], BestOf(rank_by=len)),
    lambda: list(client.stream([{{"role": "user", "content": "a"}}])),
    lambda: list(client.decode_many(["a"] * 3)),
    lambda: client.score("a", ["b", [1]]),
    lambda: client.tokenize("a"),
    lambda: client.stats(),
    lambda: client.info,
    lambda: asyncio.run(AsyncClient("127.0.0.1:9", retries=0).decode("a")),
):
    try:
        call()
    except UnavailableError:
        pass
    else:
        raise AssertionError("nobody is there")
client.close()
found = {heavy!r} & set(sys.modules)
assert not found, found
missing = set()
for name in forkdecode.__all__:
    try:
        getattr(forkdecode, name)
    except ModuleNotFoundError as error:
        assert error.name in {heavy!r} | {{"torch"}}, error
        missing.add(name)
catalogues = {{"Catalogue", "Catalogues", "build_catalogue", "open_catalogue", "save_catalogue"}}
assert missing == {{"LLM", "AsyncLLM"}} | catalogues, missing
"""


def light_install() -> list[str]:
    """The packages that docs/client.md names, and README.md too."""
    root = Path(__file__).parents[1]
    text = (root / "docs" / "client.md").read_text()
    match = re.search(r"pip install --no-deps \.\n\$ python -m pip install (.*)\n", text)
    assert match is not None
    assert match[0] in (root / "README.md").read_text()
    return match[1].replace("'", "").split()


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], check=False, timeout=100, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


def test_import_without_torch() -> None:
    run(PROGRAM)


def test_clients_need_the_light_install_alone() -> None:
    allowed = {re.split(r"[<>=]", package)[0] for package in light_install()}
    assert allowed
    # What they need themselves.
    allowed |= {"typing-extensions", "markdown-it-py", "mdurl", "pygments"}
    run(CLIENT.format(allowed=sorted(allowed), heavy=set(HEAVY)))


@pytest.mark.parametrize("missing", ["grpcio", "protobuf", "googleapis-common-protos", "rich"])
def test_the_light_install_has_nothing_to_spare(missing: str) -> None:
    allowed = {re.split(r"[<>=]", package)[0] for package in light_install()} | {"typing-extensions"}
    assert missing in allowed
    with pytest.raises(AssertionError, match="not of the light install"):
        run(CLIENT.format(allowed=sorted(allowed - {missing}), heavy=set(HEAVY)))


def test_its_versions_are_those_of_the_project() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for package in light_install():
        assert f'"{package}"' in project, package


def test_every_public_name_is_there() -> None:
    import forkdecode

    for name in forkdecode.__all__:
        value = getattr(forkdecode, name)
        assert value.__doc__ or not (inspect.isclass(value) or inspect.isfunction(value)), name
