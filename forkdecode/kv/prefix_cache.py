"""The prefix cache: full blocks found again by what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from forkdecode.kv.block_pool import BlockPool
from forkdecode.step import I32, I64


class PrefixCache:
    """Maps the content of full blocks to blocks of the pool, holding one reference on each.

    A block's key is SHA-256(key of the block before it, its token ids as little-endian int64), so
    it names the whole prefix; the chain begins at SHA-256(root, salt). Root holds whatever changes
    KV (the model's name, its dtype); requests with different salts never meet.

    A block that only the cache holds is idle and may be evicted: longest idle first, a sequence's
    last blocks before its first. `match` counts as use.
    """

    def __init__(self, pool: BlockPool, root: bytes) -> None:
        self._pool = pool
        self._root = root
        self._blocks: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self.queries = 0
        """Full blocks asked for so far."""
        self.hits = 0
        """Of those, found."""
        self.evictions = 0
        pool.attach(self._forget)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def num_evictable(self) -> int:
        """Blocks that only the cache holds."""
        return self._pool.num_evictable

    def match(self, tokens: I64, salt: str = "", max_blocks: int | None = None) -> I32:
        """The longest cached run of leading full blocks of `tokens`, at most max_blocks of them.

        Takes no reference: pass the blocks to `BlockTable.open` before anything is allocated.
        """
        limit = len(tokens) // self._pool.block_size
        limit = limit if max_blocks is None else max(0, min(limit, max_blocks))
        found: list[int] = []
        for key in self._chain(self._start(salt), tokens, 0, limit):
            block = self._blocks.get(key)
            if block is None:
                break
            found.append(block)
        self.queries += limit
        self.hits += len(found)
        blocks = np.array(found, np.int32)
        self._pool.touch(blocks[::-1])
        return blocks

    def insert(self, tokens: I64, blocks: I32, salt: str = "", computed_full: int | None = None) -> int:
        """Register a row's leading full blocks whose content is not yet cached; how many were new.

        tokens and blocks begin at position 0; only the first `computed_full` blocks (None: all that
        `tokens` fill) hold finished KV. Content cached under another block stays there. The caller
        still holds `blocks`.
        """
        full = min(len(tokens) // self._pool.block_size, len(blocks))
        full = full if computed_full is None else min(full, computed_full)
        start, before = self._known(blocks[:full], salt)
        keys = self._chain(before, tokens, start, full)
        new: list[int] = []
        for block, key in zip(blocks[start:full].tolist(), keys, strict=True):
            if key not in self._blocks and block not in self._keys:
                self._blocks[key] = block
                self._keys[block] = key
                new.append(block)
        if new:
            self._pool.adopt(np.array(new, np.int32))
        return len(new)

    def clear(self) -> None:
        """Evict every idle block."""
        self._pool.evict(self._pool.num_evictable)

    def forget(self) -> None:
        """From now on nothing cached so far is found: other weights compute the same tokens' keys and values.
        Blocks that somebody else still holds leave as they become idle."""
        self._root = hashlib.sha256(self._root).digest()
        self.clear()

    def references(self) -> I32:
        """One entry for each block cached."""
        return np.fromiter(self._keys, np.int32, len(self._keys))

    def _start(self, salt: str) -> bytes:
        root = hashlib.sha256(self._root).digest()
        return hashlib.sha256(root + salt.encode("utf-8", "surrogatepass")).digest()

    def _chain(self, key: bytes, tokens: I64, first: int, end: int) -> Iterator[bytes]:
        """Keys of the blocks first .. end - 1; `key` is that of the block before them."""
        size = self._pool.block_size
        content = np.ascontiguousarray(tokens[first * size : end * size], "<i8").tobytes()
        step = 8 * size
        for at in range(0, len(content), step):
            key = hashlib.sha256(key + content[at : at + step]).digest()
            yield key

    def _known(self, blocks: I32, salt: str) -> tuple[int, bytes]:
        """How many of the leading blocks are cached themselves, and the key of the last: a row that
        grows is not hashed again from its beginning.
        """
        cached = self._pool.cached[blocks]
        count = len(blocks) if cached.all() else int(cached.argmin())
        return count, self._keys[int(blocks[count - 1])] if count else self._start(salt)

    def _forget(self, blocks: I32) -> None:
        for block in blocks.tolist():
            del self._blocks[self._keys.pop(block)]
        self.evictions += len(blocks)
