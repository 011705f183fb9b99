"""End to end for gpu_check: the whole engine's beams against transformers' generate, on random models."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
)

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.idle import idle_of
from forkdecode import LLM, Beam, DecodeResult, Greedy, Sample, Strategy
from forkdecode.config import Compile
from forkdecode.logs import fields_of
from forkdecode.model.graphed import GraphedDecoder

FELL_BACK = ("kernels_off", "graphs_off", "graphs_dropped")
"""What the engine logs when it computes in a slower way than it was asked to: attention by torch's products
over gathered keys and values, or steps launched kernel by kernel."""
TOLD = (*FELL_BACK, "graphs_differ_in_last_bits", "swap_in_pieces", "swap_not_page_locked")
"""All that it logs of a GPU's ways."""
PROFILED_TOKENS = 24
"""Of a run under the profiler, which keeps a record of each kernel."""
STEP_OF_8B = 2 * 8e9
"""Bytes: the weights of a model of 8B, 2 bytes each, which its shortest step reads once."""


@dataclass(frozen=True)
class Case:
    """prompts x width beams of new_tokens each, after prompts of prompt_len tokens. attention: which of
    transformers' it is compared with."""

    prompts: int
    prompt_len: int
    width: int
    new_tokens: int
    config: PretrainedConfig
    dtype: torch.dtype
    attention: str = "sdpa"

    @property
    def tokens(self) -> int:
        return self.prompts * self.width * self.new_tokens

    @property
    def blocks(self) -> int:
        """Of 16 tokens, twice what the beams need at most. Said to the engine, which would otherwise take
        what is free of the GPU, and transformers shares it."""
        own = self.width * (self.new_tokens // 16 + 2)
        return 2 * self.prompts * (self.prompt_len // 16 + 1 + own)

    def prompt_ids(self) -> np.ndarray:
        """[prompts, prompt_len]."""
        rng = np.random.default_rng(0)
        return rng.integers(10, self.config.vocab_size, (self.prompts, self.prompt_len))

    def model(self, device: torch.device) -> PreTrainedModel:
        """The same weights each time."""
        torch.manual_seed(0)
        with torch.device(device):
            made = AutoModelForCausalLM.from_config(self.config, attn_implementation=self.attention)
        ready: PreTrainedModel = made.to(self.dtype).eval()
        return ready


@dataclass(frozen=True)
class Run:
    """seconds: of the second of two runs. told: what the engine logged of the GPU. first: seconds of a run
    of one token, which is the prompts' work. start, captures: seconds until the engine was ready, and of
    these for captured graphs. idle: microseconds a step in which the GPU waits for the host, idle_samples: of
    steps of samples, which are launched ahead; None where that was not measured. lost: why idle was not."""

    seconds: float
    results: tuple[DecodeResult, ...]
    told: tuple[dict[str, Any], ...]
    first: float = 0.0
    start: float = 0.0
    captures: float = 0.0
    idle: float | None = None
    idle_samples: float | None = None
    lost: str | None = None

    @property
    def fell_back(self) -> tuple[dict[str, Any], ...]:
        """Of what it logged, what makes it slower."""
        return tuple(event for event in self.told if event["event"] in FELL_BACK)

    @property
    def scores(self) -> np.ndarray:
        """Of each prompt's best candidate."""
        return np.array([r.candidates[0].score for r in self.results])

    @property
    def tokens(self) -> np.ndarray:
        """[prompts, new_tokens], of each prompt's best candidate."""
        return np.array([r.candidates[0].token_ids for r in self.results])


def case(bench: Bench) -> Case:
    """The shape of Llama 3.2 1B, or a tiny one."""
    if bench.rehearse:
        return tiny_cases()["llama"]
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128_256, max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}, tie_word_embeddings=True,
        **ENDLESS,
    )  # fmt: skip
    return Case(8, 512, 8, 64, config, bench.dtype)


ENDLESS: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
"""Every beam goes on to the last token."""


def tiny_cases() -> dict[str, Case]:
    """Models of two layers in float32: with plain attention, and with windows and a soft cap. Their weights
    are large, so that choices are clear."""
    common: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 256,
        "initializer_range": 0.4, **ENDLESS,
    }  # fmt: skip
    configs = {
        "llama": LlamaConfig(**common),
        "gemma2": Gemma2Config(**common, head_dim=16, sliding_window=20, query_pre_attn_scalar=16),
    }
    return {name: Case(2, 37, 4, 12, config, torch.float32, "eager") for name, config in configs.items()}


def exact(bench: Bench) -> dict[str, Any]:
    """Beams of tiny models in float32, and greedy decoding, whose steps are launched ahead: both must be
    transformers' token for token."""
    found: dict[str, Any] = {}
    cases = {name: one for beams, work in tiny_cases().items() for name, one in _and_greedy(beams, work)}
    for name, work in cases.items():
        ours = decoded(work, bench.device)
        _, _, theirs = generated(work, bench.device)
        same = int((ours.tokens == theirs).all(1).sum())
        found[name] = {"same": same, "of": work.prompts, "fell_back": ours.fell_back, "told": ours.told}
    return found | {"ok": all(f["same"] == f["of"] and not f["fell_back"] for f in found.values())}


def _and_greedy(name: str, work: Case) -> list[tuple[str, Case]]:
    return [(name, work), (f"{name}, greedy", replace(work, width=1))]


def end_to_end(bench: Bench, compiles: Compile) -> dict[str, Any]:
    """Tokens per second of both, prompts included, the second of two runs each; and a step of ours, prompts
    left out. In bfloat16, beams part where scores are close, so scores are compared in place of tokens: ours
    must be those that transformers' plain forward gives the same tokens."""
    work = case(bench)
    ours = decoded(work, bench.device, compiles, profiled=not bench.rehearse)
    theirs, their_scores, _ = generated(work, bench.device)
    gap = float(np.abs(ours.scores - rescored(work, bench.device, ours.tokens)).max())
    return {
        "prompts": work.prompts,
        "prompt_len": work.prompt_len,
        "width": work.width,
        "new_tokens": work.new_tokens,
        "tokens_per_second": work.tokens / ours.seconds,
        "transformers_tokens_per_second": work.tokens / theirs,
        "ratio": theirs / ours.seconds,
        "prefill_ms": 1000 * ours.first,
        "step_ms": 1000 * (ours.seconds - ours.first) / (work.new_tokens - 1),
        "start_s": ours.start,
        "captures_s": ours.captures,
        "idle_us": ours.idle,
        "idle_us_samples": ours.idle_samples,
        "idle_lost": ours.lost,
        "idle_share_of_8b_step": None
        if ours.idle is None
        else 1e-6 * ours.idle * bench.bandwidth / STEP_OF_8B,
        "score_gap": gap,
        "best_score_ours": float(ours.scores.mean()),
        "best_score_transformers": float(their_scores.mean()),
        "fell_back": ours.fell_back,
        "told": ours.told,
        "ok": gap < 0.05 and not ours.fell_back,
    }


def decoded(work: Case, device: torch.device, compiles: Compile = "none", *, profiled: bool = False) -> Run:
    """By the engine. An engine that fell back computes the same, so its log is read."""
    prompts, model = [p.tolist() for p in work.prompt_ids()], work.model(device)
    beams: Strategy = Beam(width=work.width) if work.width > 1 else Greedy()
    with logged_events() as log, timed_captures() as captures:
        begin = time.perf_counter()
        with LLM(
            model, device=str(device), prefix_cache=False, compile=compiles, num_blocks=work.blocks
        ) as llm:
            start = time.perf_counter() - begin

            def run(tokens: int, strategy: Strategy = beams) -> tuple[DecodeResult, ...]:
                return tuple(llm.decode(prompts, strategy, max_tokens=tokens))

            seconds, results = _second(lambda: run(work.new_tokens))
            first, _ = _second(lambda: run(1))
            idle, lost = _idle(lambda: run(PROFILED_TOKENS)) if profiled else (None, None)
            samples = Sample(n=work.width, seed=0)
            ahead, _ = _idle(lambda: run(PROFILED_TOKENS, samples)) if profiled else (None, None)
    told = tuple(event for event in log if event["event"] in TOLD)
    return Run(seconds, results, told, first, start, sum(captures), idle, ahead, lost)


def _idle(run: Callable[[], object]) -> tuple[float | None, str | None]:
    """Microseconds, or why there are none: a profiler that does not work costs nothing else."""
    try:
        found = idle_of(run)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    return found, "the profiler saw no steps" if found is None else None


@contextmanager
def logged_events() -> Iterator[list[dict[str, Any]]]:
    """Within, the events that the engine logs are added to what it gives: their fields, and their name as
    `event`."""
    events: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (told := fields_of(record)) is not None:
                events.append({**told[1], "event": told[0]})

    logger, handler = logging.getLogger("forkdecode"), Kept()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield events
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def timed_captures() -> Iterator[list[float]]:
    """Within, the seconds of each warm-up of graphs are added to what it gives."""
    plain, seconds = GraphedDecoder.warm_up, []

    def warm_up(graphed: GraphedDecoder, *arguments: Any) -> None:
        begin = time.perf_counter()
        plain(graphed, *arguments)
        seconds.append(time.perf_counter() - begin)

    with mock.patch.object(GraphedDecoder, "warm_up", warm_up):
        yield seconds


@torch.inference_mode()
def generated(work: Case, device: torch.device) -> tuple[float, np.ndarray, np.ndarray]:
    """By transformers: seconds, scores [prompts] and new tokens [prompts, new_tokens] of the best."""
    model: Any = work.model(device)
    ids = torch.from_numpy(work.prompt_ids()).to(device)

    def run() -> tuple[np.ndarray, np.ndarray]:
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=work.width, do_sample=False,
            max_new_tokens=work.new_tokens, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        new = out.sequences[:, work.prompt_len :].cpu().numpy()  # waits for the device
        scores = out.sequences_scores.float().cpu().numpy() if work.width > 1 else np.zeros(len(new))
        return scores, new

    seconds, (scores, new) = _second(run)
    return seconds, scores, new


@torch.inference_mode()
def rescored(work: Case, device: torch.device, tokens: np.ndarray) -> np.ndarray:
    """What transformers' plain forward makes of tokens [prompts, n]: the mean of their log-probabilities."""
    n = tokens.shape[1]
    whole = torch.from_numpy(np.concatenate([work.prompt_ids(), tokens], 1)).to(device)
    logits = work.model(device)(whole, use_cache=False).logits[:, -n - 1 : -1]
    logprobs = torch.log_softmax(logits.float(), -1).gather(2, whole[:, -n:, None])
    found: np.ndarray = logprobs.mean((1, 2)).cpu().numpy()
    return found


def _second(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the second of two runs, and what it gave."""
    run()
    begin = time.perf_counter()
    found = run()
    return time.perf_counter() - begin, found
