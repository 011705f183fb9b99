"""Pictures of nodes that were exported: paths without a history."""

from __future__ import annotations

from collections.abc import Sequence

from forkdecode.calls.picture import Picture, PictureNode
from forkdecode.tree_types import NodePath


def exported_picture(title: str, paths: Sequence[NodePath]) -> Picture:
    """Each below its parent, or the longest other path that its own begins with, or nothing."""
    ordered = sorted(paths, key=lambda path: (len(path.token_ids), path.node))
    by_number = {path.node: place for place, path in enumerate(ordered)}
    places: dict[tuple[int, ...], int] = {}
    nodes = []
    for place, path in enumerate(ordered):
        parent = None if path.parent is None else by_number.get(path.parent)
        if parent is None or parent >= place or not _begins(path, ordered[parent]):
            beginnings = (path.token_ids[:end] for end in range(len(path.token_ids) - 1, 0, -1))
            parent = next((places[ids] for ids in beginnings if ids in places), None)
        places[path.token_ids] = place
        nodes.append(_node(path, parent))
    return Picture(title, ("as exported",), tuple(nodes))


def _begins(path: NodePath, above: NodePath) -> bool:
    return path.token_ids[: len(above.token_ids)] == above.token_ids


def _node(path: NodePath, parent: int | None) -> PictureNode:
    generated = path.finish_reason is not None
    return PictureNode(
        name=str(path.node),
        parent=parent,
        kind="generated" if generated else "given" if path.parent is not None else "prompt",
        text=path.text,
        tokens=len(path.token_ids) - path.start,
        ended=0,
        reason=path.finish_reason,
        logprob=path.cumulative_logprob if generated else None,
        item=path.item,
    )
