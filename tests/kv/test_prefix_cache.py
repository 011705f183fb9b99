from __future__ import annotations

import hashlib

import numpy as np
import pytest

from forkdecode.kv import BlockPool, BlockTable, PrefixCache


def computed(pool: BlockPool, tokens: int) -> BlockTable:
    table = BlockTable.open(pool)
    table.extend(tokens)
    return table


def filled(pool: BlockPool, cache: PrefixCache, tokens: np.ndarray, salt: str = "") -> list[int]:
    """Compute, cache and let go; the blocks it had."""
    table = computed(pool, len(tokens))
    blocks = table.row_blocks(0)
    cache.insert(tokens, blocks, salt)
    table.release()
    return blocks.tolist()


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(12, 4)


@pytest.fixture
def cache(pool: BlockPool) -> PrefixCache:
    return PrefixCache(pool, b"model")


def test_full_blocks_are_found_again(pool: BlockPool, cache: PrefixCache) -> None:
    blocks = filled(pool, cache, np.arange(10))
    assert cache.match(np.arange(10)).tolist() == blocks[:2]
    assert cache.match(np.arange(7)).tolist() == blocks[:1]
    assert cache.match(np.arange(10), max_blocks=1).tolist() == blocks[:1]
    assert cache.match(np.array([0, 1, 2, 9, 4, 5, 6, 7])).tolist() == []
    assert (cache.queries, cache.hits) == (2 + 1 + 1 + 2, 2 + 1 + 1)
    assert (pool.num_free, cache.num_evictable) == (10, 2)


def test_a_block_is_found_only_behind_its_own_prefix(pool: BlockPool, cache: PrefixCache) -> None:
    filled(pool, cache, np.array([1, 1, 1, 1, 5, 5, 5, 5]))
    filled(pool, cache, np.array([2, 2, 2, 2]))
    assert len(cache.match(np.array([2, 2, 2, 2, 5, 5, 5, 5]))) == 1


def test_salts_and_models_never_meet(pool: BlockPool, cache: PrefixCache) -> None:
    filled(pool, cache, np.arange(8), "one")
    assert len(cache.match(np.arange(8), "two")) == 0
    assert len(cache.match(np.arange(8), "one")) == 2
    assert PrefixCache(pool, b"other")._start("one") != cache._start("one")
    # A root cannot be shifted into a salt.
    assert PrefixCache(pool, b"mod")._start("elone") != cache._start("one")


def test_any_text_is_a_salt(pool: BlockPool, cache: PrefixCache) -> None:
    filled(pool, cache, np.arange(4), "\ud800é")
    assert len(cache.match(np.arange(4), "\ud800é")) == 1


def test_the_key_is_the_chained_sha256(cache: PrefixCache) -> None:
    key = hashlib.sha256(hashlib.sha256(b"model").digest() + b"salt").digest()
    tokens = np.arange(8, dtype=np.int64)
    expected = []
    for block in (tokens[:4], tokens[4:]):
        key = hashlib.sha256(key + block.astype("<i8").tobytes()).digest()
        expected.append(key)
    assert list(cache._chain(cache._start("salt"), tokens, 0, 2)) == expected


def test_only_computed_blocks_enter(pool: BlockPool, cache: PrefixCache) -> None:
    table = computed(pool, 12)
    assert cache.insert(np.arange(12), table.row_blocks(0), computed_full=1) == 1
    assert len(cache.match(np.arange(12))) == 1
    assert cache.insert(np.arange(12), table.row_blocks(0)) == 2
    assert len(cache.match(np.arange(12))) == 3
    pool.check([table, cache])


def test_content_cached_under_another_block_stays_there(pool: BlockPool, cache: PrefixCache) -> None:
    first, second = computed(pool, 8), computed(pool, 12)
    cache.insert(np.arange(8), first.row_blocks(0))
    assert cache.insert(np.arange(12), second.row_blocks(0)) == 1
    expected = [*first.row_blocks(0).tolist(), int(second.row_blocks(0)[2])]
    assert cache.match(np.arange(12)).tolist() == expected
    pool.check([first, second, cache])


def test_content_evicted_under_another_block_enters_again(pool: BlockPool, cache: PrefixCache) -> None:
    first, second = computed(pool, 4), computed(pool, 8)
    cache.insert(np.arange(4), first.row_blocks(0))
    cache.insert(np.arange(8), second.row_blocks(0))
    first.release()
    cache.clear()
    assert len(cache.match(np.arange(8))) == 0
    assert cache.insert(np.arange(8), second.row_blocks(0)) == 1
    assert cache.match(np.arange(8)).tolist() == second.row_blocks(0).tolist()
    pool.check([second, cache])


def test_growing_rows_are_not_hashed_again(
    pool: BlockPool, cache: PrefixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = computed(pool, 40)
    cache.insert(np.arange(40), table.row_blocks(0), computed_full=9)
    chain, hashed = cache._chain, []
    monkeypatch.setattr(cache, "_chain", lambda *a: (hashed.append(k) or k for k in chain(*a)))
    assert cache.insert(np.arange(40), table.row_blocks(0)) == 1
    assert len(hashed) == 1


def test_the_longest_idle_sequence_goes_first_and_its_last_block_first(
    pool: BlockPool, cache: PrefixCache
) -> None:
    filled(pool, cache, np.arange(16))
    filled(pool, cache, np.arange(100, 116))
    pool.allocate(4 + 3)
    assert [len(cache.match(np.arange(16))), len(cache.match(np.arange(100, 116)))] == [1, 4]
    assert cache.evictions == 3


def test_a_trunk_is_evicted_from_its_end(pool: BlockPool, cache: PrefixCache) -> None:
    table = computed(pool, 16)
    table.advance(np.zeros(2, np.int32))
    assert len(table.trunk) == 4
    cache.insert(np.arange(16), table.row_blocks(1))
    table.release()
    pool.evict(1)
    assert len(cache.match(np.arange(16))) == 3


def test_a_match_counts_as_use(pool: BlockPool, cache: PrefixCache) -> None:
    filled(pool, cache, np.arange(16))
    filled(pool, cache, np.arange(100, 116))
    cache.match(np.arange(16))
    pool.allocate(4 + 4)
    assert [len(cache.match(np.arange(16))), len(cache.match(np.arange(100, 116)))] == [4, 0]


def test_a_prefix_shared_by_released_rows_goes_after_all_of_them(pool: BlockPool, cache: PrefixCache) -> None:
    table = computed(pool, 2)
    table.advance(np.zeros(2, np.int32))
    table.extend(2)
    table.advance(np.array([0, 1, 1], np.int32))
    table.extend(4)
    tokens = [np.array([0, 0, a, a, b, b, b, b]) for a, b in ((1, 2), (3, 4), (3, 5))]
    for row in range(3):
        cache.insert(tokens[row], table.row_blocks(row))
    table.release()
    pool.allocate(pool.num_free)
    while cache.num_evictable:
        pool.evict(1)
        # Whatever is left is still reachable from its beginning.
        reachable = {b for t in tokens for b in cache.match(t).tolist()}
        assert len(reachable) == len(cache)


def test_a_requests_own_hits_are_not_evictable(pool: BlockPool, cache: PrefixCache) -> None:
    filled(pool, cache, np.arange(8))
    table = BlockTable.open(pool, cache.match(np.arange(9), max_blocks=2))
    assert cache.num_evictable == 0
    assert pool.num_available == 10
    pool.check([table, cache])


def test_a_cached_block_is_copied_before_it_is_overwritten(pool: BlockPool, cache: PrefixCache) -> None:
    table = computed(pool, 8)
    cache.insert(np.arange(8), table.row_blocks(0))
    table.truncate(6)
    copies = table.extend(1).copies
    assert copies.source.tolist() == cache.match(np.arange(8)).tolist()[1:]
    pool.check([table, cache])


def test_what_is_forgotten_is_not_found_and_what_comes_is(pool: BlockPool, cache: PrefixCache) -> None:
    table = computed(pool, 8)
    cache.insert(np.arange(8), table.row_blocks(0))
    filled(pool, cache, np.arange(20, 28))
    cache.forget()
    assert (len(cache), cache.num_evictable) == (2, 0)  # somebody else holds them
    for tokens in (np.arange(8), np.arange(20, 28)):
        assert not len(cache.match(tokens))
    blocks = filled(pool, cache, np.arange(8))
    assert cache.match(np.arange(8)).tolist() == blocks
    table.release()
    pool.check([cache])
    cache.clear()
    assert pool.num_free == pool.num_blocks
