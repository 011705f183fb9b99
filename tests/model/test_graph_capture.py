"""How a step is captured as a CUDA graph, which only a GPU can do: here what torch is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers.utils.generic import ModelOutput

from forkdecode.model.graph_capture import GraphCapture

DEVICE = torch.device("cuda", 1)


class Cuda:
    """What torch.cuda is asked for. fails: whether the end of a capture does, which leaves its stream as the
    current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False) -> None:
        self.stream = "the caller's"
        self.asked: list[tuple[Any, Any, dict[str, Any]]] = []
        self.replayed = 0
        cuda = self

        class Graph:
            def replay(self) -> None:
                cuda.replayed += 1

        @contextmanager
        def graph(_: Graph, pool: Any, stream: Any, **options: Any) -> Iterator[None]:
            cuda.asked.append((pool, stream, options))
            cuda.stream = stream
            yield
            if fails:
                raise RuntimeError("operation failed due to a previous error during capture")
            cuda.stream = "the caller's"

        pools = iter(range(100))
        for name, fake in {
            "CUDAGraph": Graph,
            "graph": graph,
            "Stream": lambda device: f"a stream of {device}",
            "graph_pool_handle": lambda: next(pools),
            "current_stream": lambda: cuda.stream,
            "set_stream": lambda stream: setattr(cuda, "stream", stream),
        }.items():
            monkeypatch.setattr(torch.cuda, name, fake)


def test_graphs_share_memory_on_a_stream_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch)
    capture, output = GraphCapture(DEVICE), ModelOutput()
    for _ in range(2):
        replay, found = capture(lambda: output)
        assert found is output
        replay()
    # thread_local: a caller's own threads may use the GPU meanwhile.
    assert cuda.asked == [(0, "a stream of cuda:1", {"capture_error_mode": "thread_local"})] * 2
    assert cuda.replayed == 2


def test_a_capture_that_fails_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Cuda(monkeypatch, fails=True)
    with pytest.raises(RuntimeError, match="during capture"):
        GraphCapture(DEVICE)(ModelOutput)
    assert cuda.stream == "the caller's"
