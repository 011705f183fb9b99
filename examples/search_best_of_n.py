"""Weighted best-of-n: whole answers vote, each as heavy as the model finds it right when asked.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The votes are counted here.
"""

import argparse
import re

from forkdecode import DEFAULT_MODEL, LLM, Client, Options, Sample
from forkdecode.search import BestOfN, Budget, Decoding, YesNoScorer, run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()

prompt = "Question: A shelf has 3 rows of 4 books. 5 books are taken away. How many are left?\nAnswer:"
decoding = Decoding(Sample(temperature=0.7), max_tokens=48, options=Options(stop="Question:"))


def answer(text: str) -> str | None:
    """The last number."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


with Client(args.server) if args.server else LLM(args.model) as llm, llm.tree(prompt, seed=1) as tree:
    search = BestOfN(n=12, answer=answer)
    scorer = YesNoScorer("\nIs this answer right? Answer yes or no:")
    result = run(tree, search, scorer, budget=Budget(nodes=12), decoding=decoding)
    spent = result.spent
    print(f"{spent.tokens} tokens in {spent.nodes} branches, {len(result.finished)} of them finished")
    for vote in search.votes()[:3]:
        print(f"{vote.answer}: weight {vote.weight:.2f} of {vote.count} answers")
    print(f"{len(result.unfinished)} answers are unfinished, and don't vote")
