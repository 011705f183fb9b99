"""Whether two answers are the same, and whether it matters."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

from tests.oracle.beam_rule import Hypothesis, Search

TOLERANCE = 1e-4
"""Of scores, relative above 1; and the gap below which a decision may fall either way."""


def difference(got: Sequence[Hypothesis], want: Sequence[Hypothesis]) -> str | None:
    """The first thing that differs, tokens or score; None where all is equal."""
    for rank, (a, b) in enumerate(zip(got, want, strict=False)):
        if a.tokens != b.tokens:
            return (
                f"hypothesis {rank}: {list(a.tokens)} ({a.score:.6f}), not {list(b.tokens)} ({b.score:.6f})"
            )
        if abs(a.score - b.score) > TOLERANCE * max(1.0, abs(b.score)):
            return f"hypothesis {rank}: score {a.score:.6f}, not {b.score:.6f}"
    if len(got) != len(want):
        return f"{len(got)} hypotheses, not {len(want)}"
    return None


def assert_same(
    got: Sequence[Hypothesis],
    want: Sequence[Hypothesis],
    search: Callable[[], Search],
    what: object,
) -> None:
    """Equal, or the search was decided by less than the tolerance somewhere: a warning says where.

    search: the plain rule's course of the same case, run only where there is a difference.
    """
    found = difference(got, want)
    if found is None:
        return
    course = search()
    text = f"{found}; {course.gap_at} was decided by {course.gap:.2e}\n{what}"
    assert course.gap < TOLERANCE, text
    warnings.warn(f"near tie: {text}", stacklevel=2)
