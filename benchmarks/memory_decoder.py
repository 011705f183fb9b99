"""Decodes requests with a real model and keeps what became of their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.memory_trace import Decoded
from benchmarks.prompts import passage

ENGINE_BLOCK = 16
TEMPERATURE, TOP_P = 1.0, 1.0


@dataclass(frozen=True)
class Ask:
    """A request. prompt, output: tokens. index: which text its prompt is cut from."""

    kind: str
    width: int
    prompt: int
    output: int
    index: int


@dataclass(frozen=True)
class Answer:
    """decoded: how its rows forked. usage: the engine's. first_step: the engine's step of its first
    selection."""

    ask: Ask
    decoded: Decoded
    usage: Any
    first_step: int


@dataclass(frozen=True)
class Run:
    """curve: [steps] unique and unshared blocks of each step; wasted: slots in them without a token."""

    answers: list[Answer]
    curve: list[tuple[int, int]]
    wasted: int


class Decoder:
    """The model and one engine, for any number of runs. tokens: of the engine's pool."""

    def __init__(self, model: str, threads: int, tokens: int) -> None:
        import torch

        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.kv_cache import bytes_per_block
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        self.loaded = load(model, "float32")
        self._resolver = Resolver(self.loaded.tokenizer, self.loaded.info)
        config = EngineConfig(
            block_size=ENGINE_BLOCK,
            num_blocks=tokens // ENGINE_BLOCK,
            prefix_cache=False,
            overcommit=True,
            swap_memory=0,
        )
        self._engine, _ = build_engine(self.loaded, config, threads)
        self.block_bytes = bytes_per_block(self.loaded.info, ENGINE_BLOCK, torch.float32)

    def run(self, asks: list[Ask], gap: int = 0) -> Run:
        """Decodes them together. gap: steps between two arrivals."""
        from forkdecode.scheduler.events import GroupFailed, GroupFinished

        scheduler = self._engine.scheduler
        begin = last = scheduler.stats()
        waiting = [self._request(str(i), ask) for i, ask in enumerate(asks)]
        histories: list[Any] = []
        usage: dict[str, Any] = {}
        first_steps = [-1] * len(waiting)
        curve: list[tuple[int, int]] = []
        while waiting or self._engine.has_work:
            while waiting and len(curve) >= gap * len(histories):
                request = waiting.pop(0)
                self._engine.submit(request)
                histories.append(scheduler._groups[request.request_id].history)
            for event in self._engine.step():
                if isinstance(event, GroupFailed):
                    raise event.error
                if isinstance(event, GroupFinished):
                    usage[event.request_id] = event.usage
            for i, history in enumerate(histories):
                if first_steps[i] < 0 and history.steps:
                    first_steps[i] = len(curve)
            before, last = last, scheduler.stats()
            unique = last.unique_block_steps - before.unique_block_steps
            curve.append((unique, last.unshared_block_steps - before.unshared_block_steps))
        if last.preemptions > begin.preemptions:
            raise SystemExit("--tokens: the pool was too small: preempted groups' counts are not their own")
        answers = [
            Answer(ask, _decoded(ask, history), usage[str(i)], first_steps[i])
            for i, (ask, history) in enumerate(zip(asks, histories, strict=True))
        ]
        return Run(answers, curve, last.wasted_slot_steps - begin.wasted_slot_steps)

    def _request(self, request_id: str, ask: Ask) -> Any:
        from forkdecode import Beam, Options, Sample

        strategy: Any = Beam(ask.width)
        if ask.kind == "sample":
            strategy = Sample(ask.width, temperature=TEMPERATURE, top_p=TOP_P, seed=ask.index)
        return self._resolver.resolve(
            passage(self.loaded.tokenizer, ask.prompt, offset=ask.index),
            strategy,
            Options(max_tokens=ask.output, ignore_eos=True),
            request_id=request_id,
            stream=False,
        )


def _decoded(ask: Ask, history: Any) -> Decoded:
    steps = history._steps
    return Decoded(ask.prompt, tuple(s.parents for s in steps), tuple(s.tokens for s in steps))
