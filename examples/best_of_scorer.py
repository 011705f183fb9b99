"""Best-of-n with a scorer of your own: a callable on the finished candidates, higher is better."""

import sys
from collections.abc import Sequence

from forkdecode import DEFAULT_MODEL, LLM, BestOf, Candidate


def variety(candidates: Sequence[Candidate]) -> list[float]:
    """Share of different words: prefers answers that don't go in circles."""
    words = [candidate.text.split() for candidate in candidates]
    return [len(set(found)) / max(1, len(found)) for found in words]


with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    result = llm.decode(
        "Name a fruit and say what it tastes like.",
        BestOf(best_of=8, n=2, rank_by=variety, seed=1),
        max_tokens=32,
        chat=True,
    )
    for candidate in result.candidates:
        print(f"{candidate.score:.2f} {candidate.text!r}")
