"""transformers' continuous batching (`generate_batch`). It has no beams; n samples are n requests."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.peers.workloads import TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="paged|sdpa"
        ).eval()

    def run(self, work: Workload, tokens: int) -> int:
        if work.kind == "beam":
            raise NotImplementedError("continuous batching has no beams")
        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        config = GenerationConfig(
            max_new_tokens=tokens,
            do_sample=work.kind == "sample",
            temperature=TEMPERATURE,
            top_p=TOP_P,
            top_k=0,
            eos_token_id=-1,
            pad_token_id=0,
            use_cuda_graph=False,
        )
        torch.manual_seed(1)
        with torch.inference_mode():
            found = self.model.generate_batch(
                inputs=[p for p in ids for _ in range(work.rows)],
                generation_config=config,
                progress_bar=False,
            )
        made = sum(len(output.generated_tokens) for output in found.values())
        assert made == len(ids) * work.rows * tokens, f"{made} tokens"
        return made
