"""Self-consistency (Wang et al. 2022) on a tree: whole answers of one prompt, and what most of them reach.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The votes are counted here.
"""

import argparse
import re

from forkdecode import DEFAULT_MODEL, LLM, Client, Options, Sample
from forkdecode.search import Decoding, SelfConsistency, run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()

prompt = """Question: A box has 4 eggs. How many eggs are in 2 boxes?
Answer: 2 * 4 = 8

Question: A bag has 3 pens. How many pens are in 3 bags?
Answer: 3 * 3 = 9

Question: A car has 4 wheels. How many wheels have 3 cars?
Answer:"""
decoding = Decoding(Sample(temperature=0.7), max_tokens=12, options=Options(stop="\n"))


def answer(text: str) -> str | None:
    """The last number."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None


with Client(args.server) if args.server else LLM(args.model) as llm, llm.tree(prompt, seed=1) as tree:
    search = SelfConsistency(answer, n=16)
    result = run(tree, search, decoding=decoding)
    spent = result.spent
    print(f"{spent.tokens} tokens in {spent.nodes} branches, {len(result.finished)} of them finished")
    for vote in search.votes()[:3]:
        print(f"{vote.answer}: {vote.count} votes")
    print(f"{len(result.unfinished)} answers are unfinished, and don't vote")
