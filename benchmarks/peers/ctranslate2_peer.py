"""CTranslate2. The model is converted once, into a temporary folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from benchmarks.peers.workloads import TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._scratch = tempfile.TemporaryDirectory()
        target = Path(self._scratch.name) / "model"
        TransformersConverter(folder).convert(str(target), quantization=dtype)
        self.generator = ctranslate2.Generator(
            str(target), device="cpu", compute_type=dtype, inter_threads=1, intra_threads=threads
        )

    def run(self, work: Workload, tokens: int) -> int:
        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        prompts = [self.tokenizer.convert_ids_to_tokens(p) for p in ids]
        options: dict[str, Any] = {
            "beam": {"beam_size": work.rows, "num_hypotheses": 1},
            "sample": {
                "beam_size": 1,
                "num_hypotheses": work.rows,
                "sampling_topk": 0,
                "sampling_topp": TOP_P,
                "sampling_temperature": TEMPERATURE,
            },
            "greedy": {"beam_size": 1},
        }[work.kind]
        ctranslate2.set_random_seed(1)
        found = self.generator.generate_batch(
            prompts, max_length=tokens, min_length=tokens, include_prompt_in_result=False, **options
        )
        assert all(len(s) == tokens for result in found for s in result.sequences_ids)
        return len(ids) * work.rows * tokens
