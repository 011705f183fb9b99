"""Spread blocks of rows over a few threads. Kernels release the interpreter lock while they run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="forkdecode-kernel")


def for_each_block(
    count: int, block: int, threads: int, make_work: Callable[[], Callable[[int, int], None]]
) -> None:
    """Run work(first, last) over 0 .. count in blocks, on the caller's thread and threads - 1 others.

    Each thread makes its own work, which may own scratch memory, and takes the next block when it
    is free, so that one on a busy core delays nobody. Which thread gets a block must not change its
    result. An exception is raised to the caller.
    """
    blocks = -(-count // block)
    turn = itertools.count()

    def run() -> None:
        work = make_work()
        while (i := next(turn)) < blocks:
            work(i * block, min(count, (i + 1) * block))

    helpers = min(threads, blocks) - 1
    futures = [_pool(helpers).submit(run) for _ in range(helpers)] if helpers > 0 else []
    try:
        run()
    finally:
        for future in futures:
            future.result()
