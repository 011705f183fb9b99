"""transformers' continuous batching (`generate_batch`). It has no beams; n samples are children of one
request, which share its prefill.

On a CPU it attends by `sdpa` with one mask over the keys of all requests (its other way is `paged|eager`).
Its cache would be 60 % of the free memory and is cut to what the workload needs, the warm-up's to what the
runs after it need. The manager is kept from run to run, as a server keeps it; its prefix cache is off, as
ours is.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.workloads import SEED, TEMPERATURE, TOKENS, TOP_P, Workload
from benchmarks.prompts import passage

PAGE = 32
BATCH_TOKENS = 512
SPARE = 1.5
"""Of the cache: where less than 15 % of it is free no prompt is begun."""
REQUESTS = 16
"""Candidates decoded together, where a run does not choose. Each attends over the keys of all. One try of 32
samples of prompts of 40 to 200 tokens, 8 tokens each, on a busy machine: 14.7 s of CPU with 8 together, 15.0
with 16, 11.2 with 32; of 16 greedy rows 12.4 with 8, 13.9 with 16. As a peer of its own:
`transformers_batching:requests=32`."""


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int, requests: int = REQUESTS) -> None:
        """requests: candidates decoded together."""
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self._requests, self._managed = requests, ("", 0)

    def run(self, work: Workload, tokens: int) -> list[int]:
        if work.kind == "beam":
            raise NotImplementedError("no beam search")
        with torch.inference_mode():
            found = self.model.generate_batch(
                inputs=[passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)],
                **self._manager(work, tokens),
            )
        made = [output.generated_tokens for output in found.values()]
        self.tokenizer.batch_decode(made)
        return [len(generated) for generated in made]

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        """By its manager's own iterator; the manager's thread runs before the request is sent."""
        prompt = passage(self.tokenizer, work.lengths[0])
        options = self._manager(work, tokens)
        with torch.inference_mode(), self.model.continuous_batching_context_manager(**options) as manager:
            arrivals.asked()
            name = manager.add_request(prompt, max_new_tokens=tokens, streaming=True)
            seen = 0
            for output in manager.request_id_iter(name):
                new = output.generated_tokens[seen:]
                self.tokenizer.decode(new)
                arrivals.arrived(len(new))
                seen += len(new)

    def _manager(self, work: Workload, tokens: int) -> dict[str, Any]:
        """What it is made with; made anew for another workload, or for more tokens than its cache is for."""
        name, room = self._managed
        if name != work.name or tokens > room:
            self.model.destroy_cached_continuous_batching_manager()
            self._managed = (work.name, max(tokens, TOKENS))
        generation = GenerationConfig(
            max_new_tokens=tokens,
            num_return_sequences=work.rows,
            do_sample=work.kind == "sample",
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
            eos_token_id=-1,
            pad_token_id=0,
        )
        return {
            "generation_config": generation,
            "continuous_batching_config": batching(work, self._managed[1], self._requests),
            "persistent_manager": True,
        }


def batching(work: Workload, tokens: int, requests: int) -> ContinuousBatchingConfig:
    """A cache that holds all candidates at once."""
    pages = work.rows * sum(-(-(n + tokens) // PAGE) for n in work.lengths)
    return ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=int(SPARE * pages),
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=requests,
        allow_block_sharing=False,
        seed=SEED,
    )
