"""CTranslate2. The model is converted once, into a temporary folder.

It prefills a batch to the length of its shortest prompt and takes the rest of the longer ones a token a step,
with all their beams or samples. So prompts of several lengths are not put into one batch (greedy: 4 alike in
length), and are spread over workers of one thread each; one prompt has one worker with all threads.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter
from transformers import AutoTokenizer

from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, Workload
from benchmarks.prompts import passage

BATCH = {"beam": 1, "sample": 1, "greedy": 4}
"""Prompts decoded together, where a run does not choose."""


class Peer:
    def __init__(self, folder: str, dtype: str, threads: int, batch: int = 0) -> None:
        """batch: prompts decoded together; 0 as usual."""
        if dtype not in ctranslate2.get_supported_compute_types("cpu"):
            raise NotImplementedError(f"no {dtype} on this CPU")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self._scratch = tempfile.TemporaryDirectory()
        self._target = str(Path(self._scratch.name) / "model")
        TransformersConverter(folder).convert(self._target, quantization=dtype)
        self._dtype, self._threads, self._workers, self._batch = dtype, threads, 0, batch

    def run(self, work: Workload, tokens: int) -> list[int]:
        self._load(min(self._threads, len(work.lengths)))
        ids = [passage(self.tokenizer, n, offset=i) for i, n in enumerate(work.lengths)]
        kinds: dict[str, dict[str, Any]] = {
            "beam": {"beam_size": work.rows, "num_hypotheses": 1},
            "sample": {
                "beam_size": 1,
                "num_hypotheses": work.rows,
                "sampling_topk": 0,
                "sampling_topp": TOP_P,
                "sampling_temperature": TEMPERATURE,
            },
            "greedy": {"beam_size": 1},
        }
        options = kinds[work.kind]
        ctranslate2.set_random_seed(SEED)
        found = self.generator.generate_batch(
            [self.tokenizer.convert_ids_to_tokens(p) for p in ids],
            max_length=tokens,
            min_length=tokens,
            max_batch_size=self._batch or BATCH[work.kind],
            include_prompt_in_result=False,
            **options,
        )
        for result in found:
            self.tokenizer.batch_decode(result.sequences_ids)
        return [len(s) for result in found for s in result.sequences_ids]

    def stream(self, work: Workload, tokens: int, arrivals: Arrivals) -> None:
        """By its callback."""
        self._load(1)
        tokenizer = self.tokenizer
        prompt = tokenizer.convert_ids_to_tokens(passage(tokenizer, work.lengths[0]))

        # A worker keeps its last callback; with the generator in it, it would end by waiting for itself.
        def came(step: Any) -> bool:
            tokenizer.decode([step.token_id])
            arrivals.arrived()
            return False

        arrivals.asked()
        self.generator.generate_batch(
            [prompt],
            beam_size=1,
            max_length=tokens,
            min_length=tokens,
            include_prompt_in_result=False,
            callback=came,
        )

    def _load(self, workers: int) -> None:
        """With so many workers; where they are another number it happens in the warm-up."""
        if workers != self._workers:
            self._workers = workers
            self.generator = ctranslate2.Generator(
                self._target,
                device="cpu",
                compute_type=self._dtype,
                inter_threads=workers,
                intra_threads=self._threads // workers,
            )
