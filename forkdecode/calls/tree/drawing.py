"""Pictures of a tree, and pages that show them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from forkdecode.calls.picture import Picture, page
from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.view import TreeView
from forkdecode.checks import check_float, check_unicode, shown
from forkdecode.errors import invalid


def draw(view: TreeView, title: str | None, scores: Mapping[Node, float] | None) -> Picture:
    """The tree as it is and was. Raises InvalidRequestError for a wrong title or wrong scores."""
    assert view.opened is not None, "the session's first event is there"
    name = f"{view.opened.tree}, {view.opened.model}"
    chosen = name if title is None else check_unicode("title", title)
    return view.history.picture(chosen, _checked(scores), view.opened.block_size)


def _checked(scores: Mapping[Node, float] | None) -> dict[Node, float]:
    found = {}
    for node, score in (scores or {}).items():
        if not isinstance(node, Node):
            raise invalid("scores", f"{shown(node)} is not a node", "numbers by Node")
        # A verifier that answers yes or no is one, too.
        found[node] = float(score) if isinstance(score, bool) else check_float("scores", score)
    return found


def write_page(path: str | os.PathLike[str], picture: Picture) -> None:
    """Raises OSError."""
    Path(path).write_text(page(picture), "ascii")
