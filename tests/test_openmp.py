"""OpenMP's threads wait passively, unless the environment says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP tells its settings on request")
@pytest.mark.parametrize(("given", "want"), [(None, "PASSIVE"), ("active", "ACTIVE")])
def test_torch_starts_with_the_wait_policy(given: str | None, want: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    environment |= {"OMP_DISPLAY_ENV": "TRUE"} | ({"OMP_WAIT_POLICY": given} if given else {})
    # All that imports torch here is of the package forkdecode, which is imported first.
    code = "import forkdecode, torch"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert f"OMP_WAIT_POLICY = '{want}'" in done.stderr
