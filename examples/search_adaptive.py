"""Adaptive-Consistency: samples until the vote is decided, as sure as 95 %.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The votes are counted here.
"""

from egg_task import DECODING, PROMPT, answer
from searching import opened, parser, show_spent

from forkdecode.search import AdaptiveConsistency, lead_confidence, run

with opened(parser(__doc__).parse_args(), PROMPT) as tree:
    search = AdaptiveConsistency(answer, n=40, confidence=0.95, batch=4)
    show_spent(run(tree, search, decoding=DECODING))
    votes = search.votes()
    for vote in votes[:3]:
        print(f"{vote.answer}: {vote.count} votes")
    first, second = ([vote.count for vote in votes] + [0, 0])[:2]
    print(f"the first is ahead with a confidence of {lead_confidence(first, second):.3f}")
