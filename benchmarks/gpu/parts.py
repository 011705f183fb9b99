"""The process in which gpu_check's parts run: reads the name of one a line, answers with what it found.

    python -m benchmarks.gpu.parts [--rehearse]

A question is a line of JSON: {"part": name, "limits": {"bandwidth": ..., "flops": ...}}; the answer another.
The first line says that the process is ready, its imports done. What libraries print goes to stderr.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from benchmarks.gpu.cases import Part, parts

TOLD = 3000
"""Characters of a traceback."""


def main() -> int:
    """Serves until there are no more questions, or the device is lost."""
    rehearse = "--rehearse" in sys.argv
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    every = {part.name: part for part in parts(rehearse)}
    for module in dict.fromkeys(part.module for part in every.values()):
        with contextlib.suppress(Exception):  # the part says what is missing
            importlib.import_module(module)
    say(answers, {"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        say(answers, answer(every[asked["part"]], rehearse, asked["limits"]))
        if not alive(rehearse):
            return 3
    return 0


def say(answers: TextIO, what: Mapping[str, Any]) -> None:
    """A line."""
    answers.write(json.dumps(what, default=_plain) + "\n")
    answers.flush()


def _plain(value: Any) -> Any:
    """numpy's numbers, and whatever else would cost a part its answer."""
    return value.item() if hasattr(value, "item") else str(value)


def answer(part: Part, rehearse: bool, limits: Mapping[str, float]) -> dict[str, Any]:
    """What a part found, or how it failed."""
    begin = time.perf_counter()
    try:
        found = run(part, rehearse, limits)
    except Exception as error:
        found = {"ok": False, "error": "".join(traceback.format_exception(error))[-TOLD:]}
    return {**found, "seconds": time.perf_counter() - begin}


def run(part: Part, rehearse: bool, limits: Mapping[str, float]) -> dict[str, Any]:
    """What a part found, once the device has done all of it."""
    from benchmarks.gpu.bench import Bench

    bench = Bench(rehearse, **limits)
    found: dict[str, Any] = getattr(importlib.import_module(part.module), part.function)(
        bench, *part.arguments
    )
    if not rehearse:
        import torch

        torch.cuda.synchronize()
    return found


def alive(rehearse: bool) -> bool:
    """Whether the device still answers. After an illegal access nothing works in the process that made it."""
    if rehearse:
        return True
    try:
        import torch

        torch.zeros(1, device="cuda").item()
    except Exception:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
