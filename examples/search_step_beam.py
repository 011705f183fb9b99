"""Step-level beam search: of 12 next lines the 3 best go on, as a checker sees them.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The checker runs here either way.
"""

import argparse

from forkdecode import DEFAULT_MODEL, LLM, Client, Options, Sample
from forkdecode.search import Branch, Budget, Decoding, StepBeam, each, run

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()

examples = """Add 4, 9, 2.
4 + 9 = 13
13 + 2 = 15
end

Add 7, 1, 8.
7 + 1 = 8
8 + 8 = 16
end

"""
numbers = [8, 5, 4]


def right(branch: Branch) -> float:
    """1 while every line adds the right next number, and is right."""
    total, lines = numbers[0], []
    for number in numbers[1:]:
        lines.append(f"{total} + {number} = {total + number}")
        total += number
    written = branch.completion.splitlines()
    return float(written == (lines if branch.is_finished else lines[: len(written)]))


prompt = examples + f"Add {', '.join(map(str, numbers))}.\n"
decoding = Decoding(
    Sample(temperature=0.8), step=("\n",), step_tokens=12, max_tokens=40, options=Options(stop=("end",))
)
with Client(args.server) if args.server else LLM(args.model) as llm, llm.tree(prompt, seed=1) as tree:
    result = run(tree, StepBeam(width=3, expand=4), each(right), budget=Budget(tokens=400), decoding=decoding)
    spent = result.spent
    print(f"{spent.tokens} tokens in {spent.nodes} branches, {len(result.finished)} of them finished")
    print(f"{result.best.score:.2f} {result.best.completion!r}" if result.best else "none is whole")
