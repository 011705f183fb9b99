"""Every complete sequence there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import numpy as np

from tests.oracle.beam_rule import Hypothesis, Path, Rule, Scores, Search


def all_sequences(scores: Scores, ends: Callable[[Path], bool], max_tokens: int) -> dict[Path, np.float32]:
    """Each sequence that ends by its last token or by its length, with the sum of its scores, float32
    one token after the other. scores: as of beam_search; what is at -inf has no continuation."""
    live: dict[Path, np.float32] = {(): np.float32(0)}
    found: dict[Path, np.float32] = {}
    for length in range(1, max_tokens + 1):
        paths = list(live)
        table = scores(paths) if paths else np.empty((0, 0), np.float32)
        grown = {
            (*path, token): np.float32(live[path] + table[row, token])
            for (row, path), token in itertools.product(enumerate(paths), range(table.shape[1]))
            if table[row, token] > -np.inf
        }
        live = {}
        for path, total in grown.items():
            (found if ends(path) or length == max_tokens else live)[path] = total
    return found


def ranking(rule: Rule, sequences: dict[Path, np.float32]) -> Search:
    """All of them as hypotheses, best first, and by how little they are ordered."""
    search = Search()
    search.hypotheses += [Hypothesis(path, rule.score(t, len(path))) for path, t in sequences.items()]
    search.hypotheses.sort(key=lambda h: -h.score)
    for better, worse in itertools.pairwise(search.hypotheses):
        unit = rule.unit(len(better.tokens), len(worse.tokens))
        search.decided(better.score, worse.score, "the order of two hypotheses", unit)
    return search


def ends_by(ids: Collection[int]) -> Callable[[Path], bool]:
    """Whether a path's last token is one of `ids`."""
    return lambda path: path[-1] in ids
