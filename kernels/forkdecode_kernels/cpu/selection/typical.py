"""Typical sampling of one row (Meister et al. 2023, section 3.2): the tokens whose surprise is nearest to the
entropy, up to a mass.

What stays lies around the entropy, not at the top. Where many tokens are in question their distances are
computed side by side, and the edge is closed in on by masses of all that is nearer than a guess; radix
selection decides among the few between the last two guesses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from forkdecode_kernels.cpu.selection.jit import kernel, reduction
from forkdecode_kernels.cpu.selection.scratch import Scratch
from forkdecode_kernels.cpu.selection.threshold import crossing

F32 = NDArray[np.float32]

GUESSES = 16
FEW = 512
"""So many tokens are not worth another guess."""
LISTED = 8
"""A list of at most V / LISTED tokens is shorter work than all of the vocabulary side by side."""
MARGIN = 1e-5
"""Of the mass: more than what float32 sums of a guess may err by."""
STRIP = 32
"""Tokens that are skipped together when none is wanted."""

_INFINITY = np.uint32(0x7F800000)
_BEYOND = np.float32(np.inf)


@kernel
def keep_typical(
    row: F32, maximum: np.float32, scale: np.float32, n: int, mass: np.float64, scratch: Scratch
) -> int:
    """Shorten the list of n tokens to those nearest to the entropy, up to `mass`; ties at the edge stay."""
    ids, weights, distances = scratch.ids, scratch.weights, scratch.distances
    total = np.float64(0.0)
    mean = np.float64(0.0)
    for j in range(n):
        w = np.float64(weights[j])
        distances[j] = row[ids[j]]
        total += w
        mean += w * np.float64(_scaled(distances[j], maximum, scale))
    _to_distances(distances[:n], weights[:n], maximum, scale, mean / total, distances[:n])
    edge = _edge(distances[:n], weights[:n], mass * total, scratch)
    kept = 0
    for j in range(n):
        ids[kept] = ids[j]
        weights[kept] = weights[j]
        kept += 1 if distances[j] <= edge else 0
    return kept


@kernel
def gather_typical(
    row: F32, maximum: np.float32, scale: np.float32, min_p: np.float64, mass: np.float64, scratch: Scratch
) -> int:
    """List what typical sampling leaves of the tokens with weights of min_p and more; returns how many.

    Reads all of the vocabulary's weights in scratch.exps, where it clears the others.
    """
    size = row.shape[0]
    weights, distances = scratch.exps[:size], scratch.distances[:size]
    if min_p > 0.0:
        for i in range(size):
            weights[i] = weights[i] if np.float64(weights[i]) >= min_p else np.float32(0.0)
    total, mean = _moments(row, weights, maximum, scale)
    _to_distances(row, weights, maximum, scale, mean / total, distances)
    edge = _edge(distances, weights, mass * total, scratch)
    ids, listed = scratch.ids, scratch.weights
    n = np.uint64(0)
    for start in range(0, size, STRIP):
        last = min(size, start + STRIP)
        if not _any_between(distances[start:last], np.float32(-1.0), edge):
            continue
        for i in range(start, last):
            ids[n] = np.int32(i)
            listed[n] = weights[i]
            n += np.uint64(distances[i] <= edge)
    return int(np.int64(n))


@kernel
def count_from(weights: F32, lowest: np.float64) -> int:
    """How many weights are above 0 and not below `lowest`."""
    count = np.int32(0)
    for i in range(weights.shape[0]):
        w = np.float64(weights[i])
        count += np.int32((w > 0.0) & (w >= lowest))
    return int(count)


@kernel
def _scaled(logit: np.float32, maximum: np.float32, scale: np.float32) -> np.float32:
    """A weight above 0 is of one above -88: none of those is changed, and 0 times it stays 0."""
    return max((logit - maximum) * scale, np.float32(-128.0))


@kernel
def _to_distances(
    row: F32, weights: F32, maximum: np.float32, scale: np.float32, mean: np.float64, out: F32
) -> None:
    """How far each surprise is from the entropy -> out; infinitely where the weight is 0.

    surprise = log(total) - z and entropy = log(total) - mean(z): their difference needs no log.
    """
    for j in range(row.shape[0]):
        distance = np.float32(abs(mean - np.float64(_scaled(row[j], maximum, scale))))
        out[j] = distance if weights[j] > np.float32(0.0) else _BEYOND


@reduction
def _moments(row: F32, weights: F32, maximum: np.float32, scale: np.float32) -> tuple[np.float64, np.float64]:
    """The sums of weights and of weights * z."""
    total = np.float64(0.0)
    mean = np.float64(0.0)
    for i in range(row.shape[0]):
        w = np.float64(weights[i])
        total += w
        mean += w * np.float64(_scaled(row[i], maximum, scale))
    return total, mean


@kernel
def _edge(distances: F32, weights: F32, target: np.float64, scratch: Scratch) -> np.float32:
    """The least distance within which there is the target weight; the largest finite one if there is none."""
    low, high = _bracket(distances, weights, target)
    keys, between = scratch.keys, scratch.spare_weights
    before = np.float64(0.0)
    if low >= np.float32(0.0):
        before = _exactly_within(distances, weights, low)
    if before >= target:  # a guess's float32 sum was further off than its margin
        low, before = np.float32(-1.0), np.float64(0.0)
    n, inside = _list_between(distances, weights, low, high, keys, between)
    if before + inside < target and high < _BEYOND:
        n, inside = _list_between(distances, weights, low, _BEYOND, keys, between)
    key, _ = crossing(keys[:n], between[:n], target - before, scratch.spare_keys, between)
    return np.uint32(_INFINITY - key).view(np.float32)


@kernel
def _bracket(distances: F32, weights: F32, target: np.float64) -> tuple[np.float32, np.float32]:
    """low, high: the target is reached beyond low and within high, by sums that may err by the margin. Few
    tokens are between them, or the guesses got no further."""
    low, high = np.float32(-1.0), _BEYOND
    below, above = np.float64(0.0), np.float64(0.0)
    fewer, more = 0, distances.shape[0]
    guess = _mean_distance(distances, weights) if more > FEW else np.float32(0.0)
    for turn in range(GUESSES):
        if more - fewer <= FEW:
            break
        mass, count = _within(distances, weights, guess)
        if np.float64(mass) < target * (1.0 - MARGIN):
            low, below, fewer = guess, np.float64(mass), count
        elif np.float64(mass) > target * (1.0 + MARGIN):
            high, above, more = guess, np.float64(mass), count
        else:
            break
        least = max(low, np.float32(0.0))
        if high == _BEYOND:
            guess = np.float32(1.5) * least
        elif turn % 2 == 0:
            guess = least + (high - least) * np.float32((target - below) / (above - below))
        else:
            guess = np.float32(0.5) * (least + high)
    return low, high


@reduction
def _within(distances: F32, weights: F32, bound: np.float32) -> tuple[np.float32, int]:
    """The weight of all within the bound, roughly, and their number."""
    mass = np.float32(0.0)
    count = np.int32(0)
    for i in range(distances.shape[0]):
        inside = distances[i] <= bound
        mass += weights[i] if inside else np.float32(0.0)
        count += np.int32(1) if inside else np.int32(0)
    return mass, int(count)


@reduction
def _mean_distance(distances: F32, weights: F32) -> np.float32:
    """Weighted, roughly: the edge is about there, whatever the temperature."""
    mass, moment = np.float32(0.0), np.float32(0.0)
    for i in range(distances.shape[0]):
        mass += weights[i]
        moment += weights[i] * (distances[i] if distances[i] < _BEYOND else np.float32(0.0))
    return np.float32(moment / mass)


@reduction
def _exactly_within(distances: F32, weights: F32, bound: np.float32) -> np.float64:
    mass = np.float64(0.0)
    for i in range(distances.shape[0]):
        mass += np.float64(weights[i]) if distances[i] <= bound else np.float64(0.0)
    return mass


@kernel
def _list_between(
    distances: F32, weights: F32, low: np.float32, high: np.float32, keys: NDArray[np.uint32], listed: F32
) -> tuple[int, np.float64]:
    """The finite distances above low and up to high as keys that order the other way -> keys, their weights
    -> listed; their number and whole weight."""
    size = distances.shape[0]
    n = np.uint64(0)
    total = np.float64(0.0)
    for start in range(0, size, STRIP):
        last = min(size, start + STRIP)
        if not _any_between(distances[start:last], low, high):
            continue
        for i in range(start, last):
            distance = distances[i]
            keys[n] = _INFINITY - np.float32(distance).view(np.uint32)
            listed[n] = weights[i]
            n += np.uint64((distance > low) & (distance <= high) & (distance < _BEYOND))
    count = int(np.int64(n))
    for j in range(count):
        total += np.float64(listed[j])
    return count, total


@kernel
def _any_between(strip: F32, low: np.float32, high: np.float32) -> bool:
    # Not over STRIP tokens by name: unrolled for a known number they are compared one by one.
    hit = np.int32(0)
    for i in range(strip.shape[0]):
        hit |= np.int32(strip[i] > low) & np.int32(strip[i] <= high)
    return bool(hit != 0)
