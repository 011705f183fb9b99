"""What installing forkdecode does to its neighbours."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGES = {"forkdecode": "forkdecode", "forkdecode_kernels": "kernels/forkdecode_kernels"}
CHECK = """
import importlib.metadata
from transformers.utils import is_kernels_available
installed = [d for d in importlib.metadata.distributions() if d.metadata["Name"] == "kernels"]
assert installed or not is_kernels_available(), "transformers takes our folder for the package `kernels`"
import forkdecode_kernels
from transformers import LlamaForCausalLM
"""


def test_transformers_does_not_take_our_kernels_for_the_package_of_that_name() -> None:
    # From the repository root, where the folder `kernels` is importable as a namespace.
    command = [sys.executable, "-c", CHECK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_forkdecode_installs_no_top_level_name_but_its_own() -> None:
    owners = importlib.metadata.packages_distributions()
    assert "forkdecode" not in owners.get("kernels", [])
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_every_requirement_is_met_here() -> None:
    for line in importlib.metadata.requires("forkdecode") or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = importlib.metadata.version(requirement.name)
            assert requirement.specifier.contains(version, prereleases=True), line


def test_every_module_has_its_layer() -> None:
    """Those of forkdecode itself, and packages whole; a module in none could be imported by any."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    listed = [module.strip() for layer in layers for module in layer.split("|")]
    found = {path.stem for path in (ROOT / "forkdecode").iterdir() if not path.stem.startswith("__init__")}
    ours = {f"forkdecode.{name}" for name in found - {"__pycache__", "py"}}
    assert sorted(listed) == sorted({*ours, "forkdecode_kernels"})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built by the project's build backend, from a copy: it leaves folders behind."""
    copy = tmp_path_factory.mktemp("project")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in PACKAGES.values():
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-c", "from setuptools import build_meta; build_meta.build_wheel('built')"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (path,) = (copy / "built").glob("*.whl")
    return zipfile.ZipFile(path)


def test_a_wheel_holds_every_file_of_ours_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    ours = {
        f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == ours
    assert {"forkdecode/py.typed", "forkdecode_kernels/py.typed"} <= held
    assert {f"forkdecode/calls/picture/page.{kind}" for kind in ("css", "html", "js")} <= held


def test_a_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    text = wheel.read(name).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    assert "Classifier: Typing :: Typed" in text
