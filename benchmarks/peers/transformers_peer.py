"""transformers' `generate`, prompts padded into one batch."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.streamers import BaseStreamer

from benchmarks.peers.arrivals import Arrivals
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
        kinds: dict[str, dict[str, Any]] = {
            "beam": {"num_beams": work.rows, "do_sample": False},
            "sample": {
                "num_return_sequences": work.rows,
                "do_sample": True,
                "temperature": TEMPERATURE,
                "top_p": TOP_P,
                "top_k": 0,
            },
            "greedy": {"do_sample": False},
        }
        options = kinds[work.kind]
        torch.manual_seed(SEED)
        with torch.inference_mode():
            out = self.model.generate(
                padded, attention_mask=mask, max_new_tokens=tokens, pad_token_id=0, **options
            )
        self.tokenizer.batch_decode(out[:, longest:])
        return [out.shape[1] - longest] * len(out)

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        """By a streamer. Its own of text holds tokens back until a word is whole; this one does not."""
        prompt = torch.tensor([passage(self.tokenizer, work.lengths[0])])
        with torch.inference_mode():
            arrivals.asked()
            self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=tokens,
                pad_token_id=0,
                do_sample=False,
                streamer=Streamer(self.tokenizer, arrivals),
            )


class Streamer(BaseStreamer):
    """Hears the prompt, then each token by itself."""

    def __init__(self, tokenizer: Any, arrivals: Arrivals) -> None:
        self._tokenizer, self._arrivals, self._heard_prompt = tokenizer, arrivals, False

    def put(self, value: torch.Tensor) -> None:
        if self._heard_prompt:
            self._tokenizer.decode(value)
            self._arrivals.arrived()
        self._heard_prompt = True

    def end(self) -> None: ...
