"""Shaping what is generated: a forced beginning, forbidden words, a stop text. Beams obey too."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Beam

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    result = llm.decode(
        "Write a sentence about the weather.",
        Beam(width=3, num_return_sequences=1),
        chat=True,
        max_tokens=24,
        min_tokens=4,
        forced_prefix="Today",
        bad_words=["sunny"],
        no_repeat_ngram_size=3,
        stop=".",
        include_stop=True,
    )
    print(f"{result.candidates[0].finish_reason}: {result.text!r}")
