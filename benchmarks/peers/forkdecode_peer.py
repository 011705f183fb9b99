"""Ours. The prefix cache is off: the same prompts run again and again, and it would skip their prefill."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage
from forkdecode import LLM, Beam, Delta, Greedy, Sample


class Peer:
    def __init__(self, folder: str, dtype: Any, threads: int) -> None:
        self.llm = LLM(folder, dtype=dtype, threads=threads, prefix_cache=False)

    def run(self, work: Workload, tokens: int) -> list[int]:
        prompts = [passage(self.llm.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        strategy: Any = {
            "beam": lambda: Beam(work.rows, num_return_sequences=1),
            "sample": lambda: Sample(work.rows, temperature=TEMPERATURE, top_p=TOP_P, seed=SEED),
            "greedy": Greedy,
        }[work.kind]()
        results = self.llm.decode(prompts, strategy, max_tokens=tokens, ignore_eos=True)
        return [len(c.token_ids) for r in results for c in r.candidates]

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        """By the events of a stream, whose text is made as they are read."""
        prompt = passage(self.llm.tokenizer, work.lengths[0])
        arrivals.asked()
        for event in self.llm.stream(prompt, Greedy(), max_tokens=tokens, ignore_eos=True):
            if isinstance(event, Delta):
                arrivals.arrived(len(event.token_ids))
