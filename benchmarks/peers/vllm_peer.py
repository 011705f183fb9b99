"""vLLM on a CPU: `n` samples in its engine, beams by the search in front of it."""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from benchmarks.peers.workloads import TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage


class Peer:
    prefix_cache = False

    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        from vllm import LLM

        self.llm: Any = LLM(
            model=folder,
            dtype=dtype,
            max_model_len=2048,
            enable_prefix_caching=self.prefix_cache,
            disable_log_stats=True,
            seed=1,
        )
        self.tokenizer = self.llm.get_tokenizer()

    def run(self, work: Workload, tokens: int) -> int:
        from vllm import SamplingParams
        from vllm.sampling_params import BeamSearchParams

        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        prompts = [{"prompt_token_ids": p} for p in ids]
        if work.kind == "beam":
            params = BeamSearchParams(beam_width=work.rows, max_tokens=tokens, ignore_eos=True)
            self.llm.beam_search(prompts, params, use_tqdm=False)
            return len(ids) * work.rows * tokens
        sampling = SamplingParams(
            n=work.rows,
            temperature=TEMPERATURE if work.kind == "sample" else 0.0,
            top_p=TOP_P if work.kind == "sample" else 1.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=True,
        )
        found = self.llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.token_ids) for result in found for output in result.outputs)
