"""Kernels run in Triton's interpreter, which must be chosen before anything imports triton.

torch and transformers import triton, so these tests have a process of their own: the usual run
collects test_interpreted.py alone, which starts it. TRITON_INTERPRET=1 pytest tests/kernels/triton
runs them directly.
"""

from __future__ import annotations

import os
from pathlib import Path

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
UNINTERPRETED_FILES = {"test_interpreted.py", "test_compiled.py", "test_rehearsal.py"}

collect_ignore = [
    path.name
    for path in Path(__file__).parent.glob("test_*.py")
    if (path.name in UNINTERPRETED_FILES) == INTERPRETED
]
