"""Stop strings in plain loops over bytes: where a candidate ends, and what text it leaves."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.beam_rule import Path


def match(texts: Sequence[bytes], path: Path, stops: Sequence[bytes]) -> tuple[int, int] | None:
    """(begin, end) in the bytes of `path` of the first stop string that ends within its last token;
    of those that end at one byte the longest."""
    read = b"".join(texts[t] for t in path)
    before = len(read) - len(texts[path[-1]])
    for end in range(before + 1, len(read) + 1):
        lengths = [len(s) for s in stops if read[:end].endswith(s)]
        if lengths:
            return end - max(lengths), end
    return None


def text(
    texts: Sequence[bytes], path: Path, stops: Sequence[bytes], reason: str, *, include_stop: bool
) -> str:
    """The text of a finished candidate: without the stop string or the token that ended it."""
    read = b"".join(texts[t] for t in path)
    found = match(texts, path, stops) if reason == "stop" else None
    if found is not None:
        read = read[: found[1] if include_stop else found[0]]
    elif reason in {"eos", "stop"}:
        read = b"".join(texts[t] for t in path[:-1])
    return read.decode("utf-8", "replace")
