"""Self-consistency (Wang et al. 2022): many chains of thought, and the answer that most of them reach.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051
"""

import argparse
import re
from collections import Counter

from forkdecode import DEFAULT_MODEL, LLM, Client, Sample

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
parser.add_argument("--chains", type=int, default=16)
args = parser.parse_args()

question = "A shelf has 3 rows of 4 books. 5 books are taken away. How many are left? Think step by step."


def answer(text: str) -> str | None:
    """The last number of a chain."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


with Client(args.server) if args.server else LLM(args.model) as llm:
    result = llm.decode(
        question, Sample(n=args.chains, temperature=0.7, top_p=0.95, seed=1), max_tokens=96, chat=True
    )
    votes = Counter(found for c in result.candidates if (found := answer(c.text)) is not None)
    for value, count in votes.most_common(3):
        print(f"{value}: {count} of {args.chains} chains")
    print(f"{args.chains - votes.total()} chains reach no number")
    print(f"the prompt was computed once; {result.usage.saved:.0%} of the KV blocks saved by sharing")
