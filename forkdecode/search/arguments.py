"""What a search is given, checked before it begins."""

from __future__ import annotations

from forkdecode.calls.tree import Node
from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.search.budget import Budget
from forkdecode.search.decoding import Decoding

_METHODS = ("begin", "ask", "tell", "ranked")


def check_policy(policy: object) -> None:
    """Raises InvalidRequestError for what lacks one of a policy's methods, and for a class."""
    if isinstance(policy, type):
        raise invalid("policy", f"{policy.__name__} is a class", f"{policy.__name__}(...)")
    missing = [name for name in _METHODS if not callable(getattr(policy, name, None))]
    if missing:
        problem = f"{shown(policy)} has no {' and no '.join(missing)}"
        raise invalid("policy", problem, f"an object with the methods {', '.join(_METHODS)}")


def check_root(root: object) -> None:
    """Raises InvalidRequestError for what is no node."""
    if not isinstance(root, Node):
        raise invalid("root", f"{shown(root)} is no Node", "a node of the tree, or None for its root")


def check_budget(budget: object) -> Budget:
    """Budget() for None. Raises InvalidRequestError for what is no budget."""
    if budget is not None and not isinstance(budget, Budget):
        raise invalid("budget", f"{shown(budget)} is no Budget", "Budget(...) or None")
    return Budget() if budget is None else budget


def check_decoding(decoding: object) -> Decoding:
    """Decoding() for None. Raises InvalidRequestError for what says no decoding."""
    if decoding is not None and not isinstance(decoding, Decoding):
        raise invalid("decoding", f"{shown(decoding)} is no Decoding", "Decoding(...) or None")
    return Decoding() if decoding is None else decoding
