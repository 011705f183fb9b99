"""transformers' `generate`, prompts padded into one batch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self.model.generation_config.eos_token_id = None

    def run(self, work: Workload, tokens: int) -> list[int]:
        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        longest = max(work.lengths)
        padded = torch.tensor([[0] * (longest - len(p)) + p for p in ids])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in ids])
        options: dict[str, Any] = {
            "beam": {"num_beams": work.rows, "do_sample": False},
            "sample": {
                "num_return_sequences": work.rows,
                "do_sample": True,
                "temperature": TEMPERATURE,
                "top_p": TOP_P,
                "top_k": 0,
            },
            "greedy": {"do_sample": False},
        }[work.kind]
        torch.manual_seed(SEED)
        with torch.inference_mode():
            out = self.model.generate(
                padded, attention_mask=mask, max_new_tokens=tokens, pad_token_id=0, **options
            )
        self.tokenizer.batch_decode(out[:, longest:])
        return [out.shape[1] - longest] * len(out)
