"""What a node's draws hang on, so that they depend on its path and seeds alone: see forkdecode.lineage.

A node's lineage is child(child(its parent's, what made it), which one); which one is a fork's seed, an
extension's tokens, a truncation's length, and for a decoded node the command's seed and then its index.
"""

from __future__ import annotations

import hashlib

import numpy as np

from forkdecode import lineage
from forkdecode.step import I64

FORK, DECODE, EXTEND, TRUNCATE = range(4)


def root_lineage(seed: int) -> int:
    """A prompt's."""
    return int(lineage.root(seed))


def forked(parent: int, seed: int) -> int:
    """That of a fork."""
    return _made(parent, FORK, seed)


def decode_seed(node: int, seed: int) -> int:
    """The seed of the ordinary request that decodes a node of lineage `node`."""
    return _made(node, DECODE, seed)


def decoded(request_seed: int, index: int) -> int:
    """That of the candidate `index` of such a request."""
    return int(lineage.child(np.uint64(request_seed), index))


def extended(parent: int, token_ids: I64) -> int:
    """That of a node that goes on with given tokens."""
    digest = hashlib.sha256(np.asarray(token_ids, "<i8").tobytes()).digest()
    return _made(parent, EXTEND, int.from_bytes(digest[:8], "little"))


def truncated(source: int, num_tokens: int) -> int:
    """That of a node made of the beginning of a path."""
    return _made(source, TRUNCATE, num_tokens)


def _made(parent: int, verb: int, which: int) -> int:
    return int(lineage.child(lineage.child(np.uint64(parent), verb), np.uint64(which)))
