"""The tree of common prefixes of sorted lists, and which of its runs are worth a node of the plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel

I32 = NDArray[np.int32]

FIRST, LAST, LEVEL, AROUND, CLOSED = range(5)
"""Rows of a tree's runs: its first list, the list behind its last, how many columns they share, the run
around it or -1; and in CLOSED the runs' numbers, those within others before these."""


@kernel
def build_tree(shared: I32, runs: I32, inside: I32) -> int:
    """shared [n + 1]: what each of n lists has in common with the one before it, -1 at both ends.

    Fills runs [5, n] with the longest runs of lists that share a column or more, and inside [n + 1] with the
    smallest run over each boundary, or -1. Returns how many runs there are. (The intervals of a
    longest-common-prefix array: Abouelhoda, Kurtz and Ohlebusch 2004, section 3.)
    """
    n = shared.shape[0] - 1
    stack = np.empty(n + 1, np.int32)
    depth = opened = closed = 0
    inside[0] = -1
    for boundary in range(1, n + 1):
        here = max(shared[boundary], 0)
        begin, left = boundary - 1, -1
        while depth and runs[LEVEL, stack[depth - 1]] > here:
            depth -= 1
            left = stack[depth]
            runs[LAST, left] = boundary
            runs[AROUND, left] = stack[depth - 1] if depth else -1
            runs[CLOSED, closed] = left
            closed += 1
            begin = runs[FIRST, left]
        if here and (not depth or runs[LEVEL, stack[depth - 1]] < here):
            runs[FIRST, opened], runs[LEVEL, opened] = begin, here
            if left >= 0:
                runs[AROUND, left] = opened
            stack[depth] = opened
            depth += 1
            opened += 1
        inside[boundary] = stack[depth - 1] if depth else -1
    return opened


@kernel
def fold(runs: I32, count: int, queries: I32, owns: I32, tokens: int, group: int, ends: I32) -> None:
    """Fills ends [count] with the column to which the lists of each run read together: the run's own, or if
    it is left out that of what is around it. Outermost first, so that what is around a run is known.

    A run of len columns of `tokens` tokens for n queries costs its reads and partial results of n * group
    heads; without it the columns are read n times, so that it pays from about 2 * group * n / (n - 1) tokens
    up. queries [n + 1]: how many come before each list. owns [2, n]: of each list where its group begins and
    ends; only what is inside a group, and not all of it, may be left out.
    """
    for i in range(count - 1, -1, -1):
        run = runs[CLOSED, i]
        first, last, around = runs[FIRST, run], runs[LAST, run], runs[AROUND, run]
        begin = ends[around] if around >= 0 else 0
        n = queries[last] - queries[first]
        short = (runs[LEVEL, run] - begin) * tokens * (n - 1) < 2 * group * n
        own = owns[1, first]
        ends[run] = (
            begin if short and last <= own and last - first < own - owns[0, first] else runs[LEVEL, run]
        )
