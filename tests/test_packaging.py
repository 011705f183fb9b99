"""What installing forkdecode does to its neighbours."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
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
