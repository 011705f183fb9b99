"""transformers' continuous batching (`generate_batch`). It has no beams; n samples are children of one
request, which share its prefill.

On a CPU it attends by `sdpa` with one mask over the keys of all requests (its other way is `paged|eager`).
Its cache would be 60 % of the free memory and is cut to what the workload needs. The manager is kept from
run to run, as a server keeps it; its prefix cache is off, as ours is.
"""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, ContinuousBatchingConfig, GenerationConfig

from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage

PAGE = 32
BATCH_TOKENS = 512
SPARE = 1.5
"""Of the cache: where less than 15 % of it is free no prompt is begun."""
REQUESTS = 16
"""Candidates decoded together. Each attends over the keys of all, so that twice as many cost four times."""


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()
        self._managed = ""

    def run(self, work: Workload, tokens: int) -> list[int]:
        if work.kind == "beam":
            raise NotImplementedError("no beam search")
        if self._managed != work.name:
            self.model.destroy_cached_continuous_batching_manager()
            self._managed = work.name
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
        with torch.inference_mode():
            found = self.model.generate_batch(
                inputs=[passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)],
                generation_config=generation,
                continuous_batching_config=batching(work, tokens),
                persistent_manager=True,
            )
        made = [output.generated_tokens for output in found.values()]
        self.tokenizer.batch_decode(made)
        return [len(generated) for generated in made]


def batching(work: Workload, tokens: int) -> ContinuousBatchingConfig:
    """A cache that holds all candidates at once."""
    pages = work.rows * sum(-(-(n + tokens) // PAGE) for n in work.lengths)
    return ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=int(SPARE * pages),
        max_batch_tokens=BATCH_TOKENS,
        max_requests_per_batch=REQUESTS,
        allow_block_sharing=False,
        seed=SEED,
    )
