"""Selection requests for the tests, short to write."""

from __future__ import annotations

from typing import Any

import numpy as np

from forkdecode import lineage
from forkdecode.step import Draw, GumbelTopK, ProcessorSpec, SelectionRequest, TopK

NO_PROCESSORS = ProcessorSpec()


def children(n: int, rows: int = 1, seed: int = 0, position: int = 7, **settings: Any) -> Draw:
    """n children, spread over the rows in turn."""
    source = (np.arange(n) % rows).astype(np.int32)
    return Draw(source, lineage.child(lineage.root(seed), np.arange(n)), position, **settings)


def beams(k: int, base: Any, **finishing: Any) -> TopK:
    return TopK(k, np.asarray(base, np.float32), live=k // 2, **finishing)


def request(
    choice: Draw | TopK | GumbelTopK,
    rows: int,
    *,
    start: int = 0,
    group: int = 0,
    processors: ProcessorSpec = NO_PROCESSORS,
    prompt: Any = (1, 2, 3),
    generated: Any = None,
    num_generated: int | None = None,
    num_logprobs: int | None = None,
) -> SelectionRequest:
    history = None if generated is None else np.asarray(generated, np.int64).reshape(rows, -1)
    made = num_generated if num_generated is not None else (0 if history is None else history.shape[1])
    return SelectionRequest(
        group, start, rows, choice, processors, np.asarray(prompt, np.int64), history, made, num_logprobs
    )
