"""Monte Carlo tree search: steps are chosen by their value and, with PUCT, the model's own prior, or by UCT.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051. The checker runs here either way.
"""

from searching import opened, parser, show_spent
from sum_task import DECODING, PROMPT, right, show_best

from forkdecode.search import Budget, Mcts, each, puct, run, uct

arguments = parser(__doc__)
arguments.add_argument("--select", choices=["puct", "uct"], default="puct")
args = arguments.parse_args()
with opened(args, PROMPT) as tree:
    search = Mcts(simulations=60, expand=3, select=puct(1.0) if args.select == "puct" else uct(1.0))
    result = run(tree, search, each(right), budget=Budget(tokens=400), decoding=DECODING)
    show_spent(result)
    for step in search.most_visited()[1:]:
        print(f"  {search.visits[step.id]} visits, value {search.means[step.id]:.2f}: {step.text!r}")
    show_best(result)
