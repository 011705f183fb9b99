"""Weighted best-of-n: whole answers vote, each as heavy as the model finds it right when asked.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The votes are counted here.
"""

from egg_task import DECODING, PROMPT, answer
from searching import opened, parser, show_spent

from forkdecode.search import BestOfN, Budget, YesNoScorer, run

with opened(parser(__doc__).parse_args(), PROMPT) as tree:
    search = BestOfN(n=12, answer=answer)
    scorer = YesNoScorer("\nIs this answer right? Answer yes or no:")
    result = run(tree, search, scorer, budget=Budget(nodes=12), decoding=DECODING)
    show_spent(result)
    for vote in search.votes()[:3]:
        print(f"{vote.answer}: weight {vote.weight:.2f} of {vote.count} answers")
    print(f"{len(result.unfinished)} answers are unfinished, and don't vote")
