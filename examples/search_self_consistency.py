"""Self-consistency (Wang et al. 2022) on a tree: whole answers of one prompt, and what most of them reach.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The votes are counted here.
"""

from egg_task import DECODING, PROMPT, answer
from searching import opened, parser, show_spent

from forkdecode.search import SelfConsistency, run

with opened(parser(__doc__).parse_args(), PROMPT) as tree:
    search = SelfConsistency(answer, n=16)
    result = run(tree, search, decoding=DECODING)
    show_spent(result)
    for vote in search.votes()[:3]:
        print(f"{vote.answer}: {vote.count} votes")
    print(f"{len(result.unfinished)} answers are unfinished, and don't vote")
