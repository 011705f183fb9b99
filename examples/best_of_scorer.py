"""Best-of-n with a scorer of your own: a callable on the finished candidates, higher is better.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The scorer runs here either way.
"""

import argparse
from collections.abc import Sequence

from forkdecode import DEFAULT_MODEL, LLM, BestOf, Candidate, Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()


def variety(candidates: Sequence[Candidate]) -> list[float]:
    """Share of different words: prefers answers that don't go in circles."""
    words = [candidate.text.split() for candidate in candidates]
    return [len(set(found)) / max(1, len(found)) for found in words]


with Client(args.server) if args.server else LLM(args.model) as llm:
    result = llm.decode(
        "Name a fruit and say what it tastes like.",
        BestOf(best_of=8, n=2, rank_by=variety, seed=1),
        max_tokens=32,
        chat=True,
    )
    for candidate in result.candidates:
        print(f"{candidate.score:.2f} {candidate.text!r}")
