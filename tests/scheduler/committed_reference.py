"""What a beam commits, in plain words: what CommonPrefix is compared with."""

from __future__ import annotations

from collections.abc import Sequence

Tokens = tuple[int, ...]


def committed(rows: Sequence[Tokens], returnable: Sequence[Tokens]) -> Tokens:
    """What all live rows and all finished hypotheses that may still be returned begin with."""
    first, *others = [*rows, *returnable]
    length = 0
    while length < len(first) and all(first[: length + 1] == other[: length + 1] for other in others):
        length += 1
    return first[:length]
