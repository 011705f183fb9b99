"""A tiny Llama with a byte-level tokenizer in an LLM, and what a test may want to know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from forkdecode import (
    LLM,
    Beam,
    BestOf,
    Candidate,
    DecodeResult,
    DiverseBeam,
    Greedy,
    Sample,
    StochasticBeam,
    Strategy,
)
from tests.tiny_model import EOS, byte_tokenizer, llama_config, vocabulary

VOCAB = vocabulary()
EOS_ID = VOCAB[EOS]
TOKENIZER = byte_tokenizer()
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "sample": Sample(n=3, seed=11, temperature=0.8),
    "best_of": BestOf(best_of=4, n=3, seed=12),
    "beam": Beam(width=3),
    "beam of 1": Beam(width=1),
    "diverse beam": DiverseBeam(width=4, groups=2),
    "stochastic beam": StochasticBeam(width=3, seed=13, temperature=0.9),
}
PROMPT = "hello world, hello"


def ids(text: str) -> tuple[int, ...]:
    """Token ids of a text."""
    return tuple(TOKENIZER.encode(text, add_special_tokens=False))


def text_of(tokens: Sequence[int]) -> str:
    """All of the text at once, without special tokens."""
    return str(TOKENIZER.decode(list(tokens), skip_special_tokens=True))


def tiny_llama(
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    prepare: Callable[[Any], None] | None = None,
    **config: Any,
) -> PreTrainedModel:
    """A fresh model, equal for equal arguments. Weights are large, so that choices are clear."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(llama_config(**config)).eval()
    if prepare is not None:
        with torch.no_grad():
            prepare(model)
    return model.to(dtype)


@contextmanager
def opened(model: PreTrainedModel | None = None, **settings: Any) -> Iterator[LLM]:
    """An LLM that has given back every block when a test is done with it."""
    defaults: dict[str, Any] = {"tokenizer": TOKENIZER, "num_blocks": 4096, "threads": 1}
    with LLM(tiny_llama() if model is None else model, **{**defaults, **settings}) as llm:
        yield llm
        settle(llm)


def settle(llm: LLM) -> None:
    """What a test sent and did not wait for may still run, or end within a few steps; then nothing is
    left. A snapshot comes after a step."""
    for _ in range(10_000):
        stats = llm.stats()
        if not stats.running_groups + stats.waiting_groups:
            break
    assert_idle(llm)


def assert_idle(llm: LLM) -> None:
    """Nothing runs, nothing waits, no block is held."""
    stats = llm.stats()
    assert (stats.running_groups, stats.waiting_groups, stats.used_blocks) == (0, 0, 0)
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


def outcome(result: DecodeResult) -> list[tuple[Any, ...]]:
    """All that must repeat bit for bit."""
    return [bits(candidate) for candidate in result.candidates]


def bits(c: Candidate) -> tuple[Any, ...]:
    return (c.index, c.token_ids, c.text, c.finish_reason, c.cumulative_logprob, c.selection_logprob, c.score)
