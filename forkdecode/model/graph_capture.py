"""Captures steps as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers.utils.generic import ModelOutput


class GraphCapture:
    """A Capture, see static_step, by CUDA graphs on one device.

    All graphs share a memory pool: an output is good until the next step alone, and replays follow each other
    on one stream, so the pool is as large as the largest step needs and not as all of them together.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], ModelOutput]) -> tuple[Callable[[], None], ModelOutput]:
        """`work` has run before, so that its kernels are compiled."""
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            # In the usual mode other threads of the process could not allocate on the GPU meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                output = work()
        finally:
            torch.cuda.set_stream(before)  # torch leaves its own where the end of a capture fails
        return graph.replay, output
