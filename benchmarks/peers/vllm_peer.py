"""vLLM on a CPU: `n` samples in its engine, beams by the search in front of it, which sends the engine each
beam anew for each token: without the prefix cache each step is a prefill of all beams.

Its first start compiles the model (minutes; kept for later starts). Threads are bound to processors, one
each, and its worker loads Intel's OpenMP where the environment has it, as its manual advises for speed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int, **cache: Any) -> None:
        """cache: vLLM's options of its prefix cache, off if not given."""
        cores = sorted(os.sched_getaffinity(0))[:threads]
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
        openmp = Path(sys.prefix) / "lib" / "libiomp5.so"
        if openmp.exists():
            os.environ.setdefault("LD_PRELOAD", str(openmp))
        from vllm import LLM

        cache = cache or {"enable_prefix_caching": False}
        self.llm: Any = LLM(
            model=folder, dtype=dtype, max_model_len=2048, disable_log_stats=True, seed=SEED, **cache
        )
        self.tokenizer = self.llm.get_tokenizer()
        self._streamed = 0

    def run(self, work: Workload, tokens: int) -> list[int]:
        from vllm import SamplingParams
        from vllm.sampling_params import BeamSearchParams

        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        prompts = [{"prompt_token_ids": p} for p in ids]
        if work.kind == "beam":
            params = BeamSearchParams(beam_width=work.rows, max_tokens=tokens, ignore_eos=True)
            best = [result.sequences[0] for result in self.llm.beam_search(prompts, params)]
            return [len(beam.tokens) - len(p) for beam, p in zip(best, ids, strict=True)]
        sampling = SamplingParams(
            n=work.rows,
            temperature=TEMPERATURE if work.kind == "sample" else 0.0,
            top_p=TOP_P if work.kind == "sample" else 1.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=True,
        )
        found = self.llm.generate(prompts, sampling, use_tqdm=False)
        return [len(output.token_ids) for result in found for output in result.outputs]

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        """By the steps of its engine, as its server reads them: tokens and text as they come."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        prompt = {"prompt_token_ids": passage(self.tokenizer, work.lengths[0])}
        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        engine = self.llm.llm_engine
        self._streamed += 1
        arrivals.asked()
        engine.add_request(f"stream-{self._streamed}", prompt, sampling)
        while engine.has_unfinished_requests():
            for output in engine.step():
                arrivals.arrived(sum(len(part.token_ids) for part in output.outputs))
