"""Beam search: the best hypotheses of one prompt, ranked by length-normalised log-probability."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Beam

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    result = llm.decode("The three primary colours are", Beam(width=4, length_penalty=0.8), max_tokens=24)
    for rank, candidate in enumerate(result.candidates, 1):
        print(f"{rank}. {candidate.score:.3f} {candidate.text!r}")
