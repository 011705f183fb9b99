"""What benchmarks.catalogue works with: random items of codes, a model, an engine taken step by step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.memory_transformers import reset_peak, resident
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import save_catalogue

NAME = "items"
SEED = 0
"""Of the random model, and of items and prompts where no other is given."""
BASE = 1000
"""The first token id of codes: level l's code c is token BASE + l * codes + c."""
RANDOM: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "pad_token_id": None,
}
"""SmolLM2-135M's shape."""


@dataclass(frozen=True)
class Items:
    """count random items of `depth` codes out of `codes` a level, duplicates among them."""

    count: int
    depth: int
    codes: int
    seed: int = SEED

    def rows(self) -> NDArray[np.int32]:
        rng = np.random.default_rng(self.seed)
        drawn = rng.integers(0, self.codes, (self.count, self.depth), dtype=np.int32)
        return drawn + np.arange(self.depth, dtype=np.int32) * self.codes + BASE

    def save(self, path: Path) -> None:
        save_catalogue(build_catalogue(self.rows()), path)


def load_model(name: str | None, dtype: str) -> Any:
    """A LoadedModel: `name`'s, or for None a random one of SmolLM2's shape, with clear choices."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from forkdecode.model.loader import adopt, load

    if name is not None:
        return load(name, dtype)
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(**RANDOM, initializer_range=0.05)).eval()
    return adopt(model, None, dtype, "auto")


def prompt_of(loaded: Any, tokens: int, number: int = 0) -> list[int]:
    """Running text where there is a tokenizer, else random ids; another one for each number."""
    if loaded.tokenizer is not None:
        from benchmarks.prompts import passage

        return passage(loaded.tokenizer, tokens, offset=number)
    rng = np.random.default_rng(SEED + 100 + number)
    return [int(token) for token in rng.integers(3, BASE, tokens)]


@dataclass(frozen=True)
class Step:
    """Seconds of one step. control: schedule and commit, the walk through the catalogue with them."""

    rows: int
    control: float
    blocks: float
    forward: float
    logits: float
    select: float

    @property
    def total(self) -> float:
        return self.control + self.blocks + self.forward + self.logits + self.select

    @property
    def share(self) -> float:
        """Of what is not the model's own work."""
        return (self.control + self.blocks + self.select) / self.total


@dataclass(frozen=True)
class Done:
    """Some requests that ran together. peak_blocks: unique ones, summed over the requests' own peaks. waste:
    share of the slots in their blocks that held no token, over all steps."""

    seconds: float
    first_token: float
    steps: tuple[Step, ...]
    results: tuple[Any, ...]
    peak_bytes: int
    waste: float

    @property
    def copies(self) -> int:
        return sum(result.usage.copies for result in self.results)

    @property
    def peak_blocks(self) -> int:
        return sum(result.usage.peak_unique_blocks for result in self.results)


class Driver:
    """An engine without a thread of its own, and one catalogue."""

    def __init__(self, loaded: Any, path: Path, threads: int, **config: Any) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.constraints.catalogues import Catalogues
        from forkdecode.engine.start import build_engine
        from forkdecode.requests.resolve import Resolver

        info = loaded.info
        known = Catalogues(info.vocab_size, info.eos_ids)
        known.put(NAME, path)
        self._resolver = Resolver(loaded.tokenizer, info, known)
        settings = EngineConfig(prefix_cache=False, **config)
        self._engine, self.capacity = build_engine(loaded, settings, threads)

    def run(self, prompts: Sequence[Sequence[int]], width: int, max_tokens: int) -> Done:
        """Beams of `width` over the catalogue, all sent at once."""
        from forkdecode import Beam, Finished, FromCatalogue, Options
        from forkdecode.requests.assembly import Assembler

        options = Options(max_tokens=max_tokens, constraint=FromCatalogue(NAME))
        before, stats = resident("VmRSS"), self._engine.stats()
        reset_peak()
        begin, first = time.perf_counter(), 0.0
        assemblers, results, steps = {}, list[Any](), list[Step]()
        for number, prompt in enumerate(prompts):
            request = self._resolver.resolve(list(prompt), Beam(width), options, request_id=str(number))
            assemblers[str(number)] = Assembler(request, self._resolver.token_bytes())
            self._engine.submit(request)
        while self._engine.has_work:
            step, events = self._step()
            first = first or (time.perf_counter() - begin if step.rows else 0.0)
            steps.append(step)
            for event in events:
                found = assemblers[event.request_id].events(event)
                results += [one.result for one in found if isinstance(one, Finished)]
        seconds = time.perf_counter() - begin
        peak, after = resident("VmHWM") - before, self._engine.stats()
        slots = (after.unique_block_steps - stats.unique_block_steps) * after.block_size
        waste = (after.wasted_slot_steps - stats.wasted_slot_steps) / slots
        return Done(seconds, first, tuple(steps), tuple(results), peak, waste)

    def _step(self) -> tuple[Step, Any]:
        """One step; rows: those that decode, 0 while a prompt is read."""
        scheduler, clock = self._engine.scheduler, time.perf_counter
        begin = clock()
        plan = scheduler.schedule()
        planned = clock()
        assert plan is not None and self._engine._runner is not None  # noqa: PT018 - narrows both
        output = self._engine._runner.execute(plan)
        executed = clock()
        events = scheduler.commit(output)
        control = planned - begin + clock() - executed
        parts = {name: output.timings.get(name, 0.0) for name in ("blocks", "forward", "logits", "select")}
        rows = 0 if plan.segments else sum(group.rows for group in plan.decodes)
        return Step(rows, control, **parts), events


def medians(steps: Sequence[Step]) -> dict[str, float]:
    """Milliseconds of each part, and the share that is not the model's."""
    names = ("control", "blocks", "forward", "logits", "select", "total")
    found = {name: 1e3 * statistics.median(getattr(step, name) for step in steps) for name in names}
    return found | {"share": statistics.median(step.share for step in steps)}
