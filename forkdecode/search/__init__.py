"""Search strategies on trees: small policies that ask for work and receive its results.

    with LLM(model) as llm, llm.tree(prompt) as tree:
        result = run(tree, StepBeam(width=4), verifier, budget=Budget(tokens=2000))

Pure Python: needs no LLM in this process.
"""

from forkdecode.search.adaptive import AdaptiveConsistency, lead_confidence
from forkdecode.search.best_first import TopN
from forkdecode.search.best_of_n import BestOfN, SelfConsistency
from forkdecode.search.branch import Branch
from forkdecode.search.budget import Budget, Spent
from forkdecode.search.classifier import ClassifierVerifier
from forkdecode.search.decoding import Decoding
from forkdecode.search.dvts import Dvts
from forkdecode.search.mcts import Mcts, puct, uct
from forkdecode.search.pool import Pool, Vote
from forkdecode.search.rebase import Rebase
from forkdecode.search.result import SearchResult
from forkdecode.search.run import run
from forkdecode.search.run_async import run_async
from forkdecode.search.step_beam import StepBeam
from forkdecode.search.top_n import TopItem, TopNResult
from forkdecode.search.top_n_run import top_n, top_n_async
from forkdecode.search.tree_quest import TreeQuest
from forkdecode.search.verifiers import TreeVerifier, Verifier, each
from forkdecode.search.work import Expand, Expanded, How, Policy, Work
from forkdecode.search.yes_no import YesNoJudge, YesNoScorer

__all__ = [
    "AdaptiveConsistency",
    "BestOfN",
    "Branch",
    "Budget",
    "ClassifierVerifier",
    "Decoding",
    "Dvts",
    "Expand",
    "Expanded",
    "How",
    "Mcts",
    "Policy",
    "Pool",
    "Rebase",
    "SearchResult",
    "SelfConsistency",
    "Spent",
    "StepBeam",
    "TopItem",
    "TopN",
    "TopNResult",
    "TreeQuest",
    "TreeVerifier",
    "Verifier",
    "Vote",
    "Work",
    "YesNoJudge",
    "YesNoScorer",
    "each",
    "lead_confidence",
    "puct",
    "run",
    "run_async",
    "top_n",
    "top_n_async",
    "uct",
]
