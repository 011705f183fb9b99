"""How sure is the model? n samples of each question: do they agree, and how likely does it find them?

Entropy 0: all samples say the same; log2(n) bits: all differ. The spread is the standard deviation of the
samples' mean log-probability a token.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051
"""

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence

from forkdecode import DEFAULT_MODEL, LLM, Candidate, Client, Sample

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()

questions = [
    "What is the capital of France? Answer with one word.",
    "Name a colour. Answer with one word.",
    "What will the weather be on the third of May in 2091? Answer with one word.",
]


def entropy(answers: Sequence[str]) -> float:
    """In bits."""
    shares = [count / len(answers) for count in Counter(answers).values()]
    return -sum(share * math.log2(share) for share in shares)


def plain(candidate: Candidate) -> str:
    """The answer without case, spaces and the full stop."""
    return candidate.text.strip().strip(".!").lower()


with Client(args.server) if args.server else LLM(args.model) as llm:
    for result, question in zip(
        llm.decode_many(questions, Sample(n=16, seed=1), max_tokens=8, chat=True), questions, strict=True
    ):
        answers = [plain(candidate) for candidate in result.candidates]
        means = [c.cumulative_logprob / len(c.token_ids) for c in result.candidates]
        most, count = Counter(answers).most_common(1)[0]
        print(question)
        print(f"  {count} of {len(answers)} say {most!r}; entropy {abs(entropy(answers)):.2f} bits")
        print(f"  mean log-prob {statistics.fmean(means):.2f}, spread {statistics.stdev(means):.2f}")
