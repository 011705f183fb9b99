"""AB-MCTS by the package treequest: new answers, or another try at one? (extra `search`)

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The checker runs here either way.
"""

from searching import opened, parser, show_spent

from forkdecode import Options, Sample
from forkdecode.search import Branch, Budget, Decoding, How, TreeQuest, each, run

title = "Five other animals, no two with the same first letter:\n"
prompt = title + "1. Ant\n2. Bear\n3. Cat\n4. Dog\n5. Elephant\n\n" + title
decoding = Decoding(Sample(temperature=0.8), max_tokens=120, options=Options(stop=("\n\n",)))


def kept(branch: Branch) -> float:
    """How much of what is asked is kept: five lines, five first letters."""
    lines = [line.strip(" -*.0123456789").lower() for line in branch.completion.splitlines()]
    letters = {line[0] for line in lines if line}
    return max(0, min(len(letters), 5) - abs(len(lines) - 5)) / 5


with opened(parser(__doc__).parse_args(), prompt) as tree:
    search = TreeQuest(  # ABMCTSA() by default; any algorithm of treequest's
        actions={"try": How(whole=True, after="\n\n" + title)}, trials=8, seed=1
    )
    result = run(tree, search, each(kept), budget=Budget(tokens=400), decoding=decoding)
    show_spent(result)
    for branch in result.finished[:3]:
        print(f"{branch.score:.1f} at depth {branch.depth}: {branch.completion.split()}")
