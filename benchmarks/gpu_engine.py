"""End to end for gpu_check: the whole engine's beams on a random 1B Llama, against transformers' generate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from forkdecode import LLM, Beam
from forkdecode.config import Compile


@dataclass(frozen=True)
class Case:
    """prompts x width beams of new_tokens each, after prompts of prompt_len tokens."""

    prompts: int
    prompt_len: int
    width: int
    new_tokens: int
    config: LlamaConfig


def case(rehearse: bool) -> Case:
    """The shape of Llama 3.2 1B, or a tiny one."""
    if rehearse:
        tiny = LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=500, max_position_embeddings=256,
        )  # fmt: skip
        return Case(2, 20, 3, 4, _endless(tiny))
    config = LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, vocab_size=128_256, max_position_embeddings=4096,
        rope_theta=500_000.0, tie_word_embeddings=True,
    )  # fmt: skip
    return Case(8, 512, 8, 64, _endless(config))


def end_to_end(device: torch.device, dtype: torch.dtype, *, rehearse: bool) -> dict[str, Any]:
    """Tokens a second of both, the second of two runs each, and how alike the results are: in bfloat16
    beams part where scores are close, so scores are compared, not tokens."""
    work = case(rehearse)
    rng = np.random.default_rng(0)
    prompts = rng.integers(10, work.config.vocab_size, (work.prompts, work.prompt_len))
    tokens = work.prompts * work.width * work.new_tokens
    theirs, their_scores = _transformers(work, prompts, device, dtype)
    ours, our_scores = _forkdecode(work, prompts, device, dtype)
    gap = float(np.abs(our_scores - their_scores).max())
    compiled = None  # on a CPU there is nothing to compile for
    if device.type != "cpu":
        compiled, its_scores = _forkdecode(work, prompts, device, dtype, "layers")
        gap = max(gap, float(np.abs(its_scores - their_scores).max()))
    return {
        "prompts": work.prompts,
        "prompt_len": work.prompt_len,
        "width": work.width,
        "new_tokens": work.new_tokens,
        "tokens_per_second": tokens / ours,
        "compiled_tokens_per_second": compiled and tokens / compiled,
        "faster": "compile=layers" if compiled and compiled < ours else "compile=none",
        "transformers_tokens_per_second": tokens / theirs,
        "ratio": theirs / ours,
        "step_ms": 1000 * ours / work.new_tokens,
        "largest_score_gap": gap,
        "ok": gap < 0.05,
    }


def _endless(config: LlamaConfig) -> LlamaConfig:
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    return config


def _model(work: Case, device: torch.device, dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(0)
    with torch.device(device):
        return LlamaForCausalLM(work.config).to(dtype).eval()


def _forkdecode(
    work: Case,
    prompts: np.ndarray,
    device: torch.device,
    dtype: torch.dtype,
    compiles: Compile = "none",
) -> tuple[float, np.ndarray]:
    strategy = Beam(width=work.width)
    with LLM(_model(work, device, dtype), device=str(device), prefix_cache=False, compile=compiles) as llm:
        seconds, results = 0.0, []
        for _ in range(2):
            begin = time.perf_counter()
            results = llm.decode([p.tolist() for p in prompts], strategy, max_tokens=work.new_tokens)
            seconds = time.perf_counter() - begin
    return seconds, np.array([r.candidates[0].score for r in results])


@torch.inference_mode()
def _transformers(
    work: Case, prompts: np.ndarray, device: torch.device, dtype: torch.dtype
) -> tuple[float, np.ndarray]:
    model = _model(work, device, dtype)
    ids = torch.from_numpy(prompts).to(device)
    seconds, scores = 0.0, np.empty(0)
    for _ in range(2):
        begin = time.perf_counter()
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=work.width, do_sample=False,
            max_new_tokens=work.new_tokens, return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        scores = out.sequences_scores.float().cpu().numpy()  # waits for the device
        seconds = time.perf_counter() - begin
    return seconds, scores
