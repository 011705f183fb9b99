"""Strategies, options and errors cost no torch: it is imported with the first LLM."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import forkdecode
from forkdecode import Beam, Options, InvalidRequestError
Beam(4), Options(stop="a"), forkdecode.EngineConfig()
try:
    Beam(0)
except InvalidRequestError:
    pass
heavy = {"torch", "transformers", "numba", "triton", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
assert set(forkdecode.__all__) <= set(dir(forkdecode))
try:
    forkdecode.Nothing
except AttributeError as error:
    assert "Nothing" in str(error)
else:
    raise AssertionError
"""


def test_import_without_torch() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)


def test_every_public_name_is_there() -> None:
    import forkdecode

    for name in forkdecode.__all__:
        assert getattr(forkdecode, name).__doc__ or name == "DEFAULT_MODEL", name
