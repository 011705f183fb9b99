"""REBASE: 12 branches at every depth, shared out by what a checker says of their parents.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The checker runs here either way.
"""

from searching import opened, parser, show_spent
from sum_task import DECODING, PROMPT, right, show_best

from forkdecode.search import Budget, Rebase, each, run

with opened(parser(__doc__).parse_args(), PROMPT) as tree:
    search = Rebase(width=12, temperature=0.2)
    result = run(tree, search, each(right), budget=Budget(tokens=400), decoding=DECODING)
    show_spent(result)
    show_best(result)
