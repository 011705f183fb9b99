"""Kernels run in Triton's interpreter, which must be chosen before anything imports triton.

torch and transformers import triton, so these tests have a process of their own: the usual run
collects test_interpreted.py alone, which starts it. TRITON_INTERPRET=1 pytest tests/kernels/triton
runs them directly. Where there is a GPU,

    FORKDECODE_KERNELS_ON=cuda pytest -o addopts= -n 12 tests/kernels/triton

runs the same tests with the compiled kernels on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = os.environ.get("FORKDECODE_KERNELS_ON") == "cuda"
UNINTERPRETED_FILES = {"test_interpreted.py", "test_compiled.py", "test_rehearsal.py"}
ON_CPU_TENSORS = {"test_transfers.py", "test_harness.py"}
"""They look at what torch and the interpreter do with tensors of the CPU."""


def _ignored(name: str) -> bool:
    if ON_GPU:
        return name in UNINTERPRETED_FILES | ON_CPU_TENSORS
    return (name in UNINTERPRETED_FILES) == INTERPRETED


collect_ignore = [path.name for path in Path(__file__).parent.glob("test_*.py") if _ignored(path.name)]

if ON_GPU:
    from tests.kernels.triton.on_gpu import send_operations

    send_operations()


@pytest.fixture(autouse=True, scope="module")
def strict_and_quick() -> Iterator[None]:
    """Poison in new memory, in the processes that run kernels."""
    with ExitStack() as stack:
        if INTERPRETED or ON_GPU:
            from tests.kernels.triton.interpreter import patched_once, poisoned_memory

            stack.enter_context(poisoned_memory())
            stack.enter_context(patched_once())
        yield
