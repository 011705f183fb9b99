"""Grammars: what llguidance and xgrammar take to compile, fork and mask, and what a step waits for masks.

    python -m benchmarks.grammars libraries [--model M] [--rows 1 16 64] [--record FILE]
    python -m benchmarks.grammars beside [--model M] [--rows 1 16] [--tokens 24] [--record FILE]

libraries: on equal terms, that is one thread, one vocabulary (M's tokenizer), the same texts token by token:
milliseconds to compile (median of 3); microseconds a row to fork, and a row and step to take a token and to
fill a mask (medians over steps of the mean over rows, and the worst step). Rows are forks of one matcher.
xgrammar is left out where it is not installed.

beside: of the time of whole requests with M, the share that selections wait for masks, which a worker makes
while the model computes; and the same masks' time by themselves.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher
from transformers import AutoTokenizer

from benchmarks.record import record
from forkdecode import DEFAULT_MODEL, LLM, JsonSchema, Regex, Sample
from forkdecode.constraints import grammar_rows
from forkdecode.constraints.grammar_text import GrammarSpec, grammar_text
from forkdecode.constraints.grammar_tokens import GrammarTokens, grammar_tokens
from forkdecode.text.token_bytes import TokenBytes, token_bytes

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
CASES: dict[str, tuple[GrammarSpec, str]] = {
    "schema": (
        JsonSchema(PERSON),
        '{"name": "Zoe Miller", "age": 42, "tags": ["painter", "speaks of bees"], '
        '"address": {"street": "Long street 7", "zip": "12345"}}',
    ),
    "any JSON": (
        JsonSchema({"type": "object"}),
        '{"a": [1, 2.5e3, {"deep": "a text of some words", "b": null}]}',
    ),
    "date": (Regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "2024-05-17"),
    "words": (
        Regex(r"([A-Z][a-z]{1,20}( [a-z]{1,20}){2,12}\. ?){1,4}"),
        "Bees like flowers of many kinds. They fly far.",
    ),
}


class Library(Protocol):
    """One library on one vocabulary."""

    def compile(self, spec: GrammarSpec) -> Any: ...
    def matcher(self, compiled: Any) -> Any: ...
    def fork(self, matcher: Any) -> Any: ...
    def take(self, matcher: Any, token: int) -> bool: ...
    def fill(self, matchers: list[Any], words: np.ndarray) -> None: ...


class LLGuidance:
    def __init__(self, tokens: TokenBytes, size: int, eos_id: int) -> None:
        self._tokens: GrammarTokens = grammar_tokens(tokens, size, [eos_id])

    def compile(self, spec: GrammarSpec) -> LLMatcher:
        found = LLMatcher(self._tokens.tokenizer, grammar_text(spec), log_level=0)
        assert not found.is_error(), found.get_error()
        return found

    def matcher(self, compiled: LLMatcher) -> LLMatcher:
        return compiled.deep_copy()

    def fork(self, matcher: LLMatcher) -> LLMatcher:
        return matcher.deep_copy()

    def take(self, matcher: LLMatcher, token: int) -> bool:
        return bool(matcher.consume_token(token))

    def fill(self, matchers: list[LLMatcher], words: np.ndarray) -> None:
        for matcher, row in zip(matchers, words, strict=True):
            matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


class XGrammar:
    def __init__(self, tokens: TokenBytes, size: int, eos_id: int) -> None:
        import xgrammar

        pieces = [tokens.of(i) for i in range(size)]
        self._info = xgrammar.TokenizerInfo(
            pieces, xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[eos_id]
        )
        self._xgrammar = xgrammar

    def compile(self, spec: GrammarSpec) -> Any:
        compiler = self._xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        if isinstance(spec, JsonSchema):
            return compiler.compile_json_schema(str(spec.schema))
        assert isinstance(spec, Regex)
        return compiler.compile_regex(spec.pattern)

    def matcher(self, compiled: Any) -> Any:
        return self._xgrammar.GrammarMatcher(compiled)

    def fork(self, matcher: Any) -> Any:
        return matcher.fork()

    def take(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))

    def fill(self, matchers: list[Any], words: np.ndarray) -> None:
        masks = words.view(np.int32)
        for i, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(masks, i)


def timed(work: Callable[..., Any], *given: Any, **named: Any) -> tuple[float, Any]:
    """Seconds, and what came of it."""
    begin = time.perf_counter()
    found = work(*given, **named)
    return time.perf_counter() - begin, found


def forks(library: Library, matcher: Any, count: int) -> list[Any]:
    return [library.fork(matcher) for _ in range(count)]


def take(library: Library, matchers: list[Any], token: int) -> bool:
    return all([library.take(matcher, token) for matcher in matchers])  # noqa: C419


def measure(
    library: Library, spec: GrammarSpec, ids: list[int], size: int, rows: list[int]
) -> dict[str, Any]:
    compiling = [timed(library.compile, spec) for _ in range(3)]
    found: dict[str, Any] = {"compile_ms": round(1e3 * statistics.median(t for t, _ in compiling), 2)}
    compiled = compiling[-1][1]
    for count in rows:
        words = np.zeros((count, -(-size // 32)), np.uint32)
        first = library.matcher(compiled)
        forking, matchers = timed(forks, library, first, count)
        takes, masks = [], [timed(library.fill, matchers, words)[0]]
        for token in ids:
            took, good = timed(take, library, matchers, token)
            assert good, f"token {token} is not taken"
            takes.append(took)
            masks.append(timed(library.fill, matchers, words)[0])
        grown, _ = timed(forks, library, matchers[0], count)
        found[f"{count} rows"] = {
            "fork_us": round(1e6 * forking / count, 1),
            "fork_at_end_us": round(1e6 * grown / count, 1),
            "take_us": round(1e6 * statistics.median(takes) / count, 1),
            "mask_us": round(1e6 * statistics.median(masks) / count, 1),
            "mask_mean_us": round(1e6 * statistics.fmean(masks) / count, 1),
            "mask_worst_us": round(1e6 * max(masks) / count, 1),
        }
    return found


def libraries(args: argparse.Namespace) -> None:
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokens = token_bytes(tokenizer)
    size = tokens.vocab_size
    kinds: dict[str, Callable[..., Library]] = {"llguidance": LLGuidance}
    if importlib.util.find_spec("xgrammar") is not None:
        kinds["xgrammar"] = XGrammar
    for name, kind in kinds.items():
        seconds, library = timed(kind, tokens, size, tokenizer.eos_token_id)
        print(json.dumps({"library": name, "vocabulary": size, "tokenizer_ms": round(1e3 * seconds)}))
        for case, (spec, text) in CASES.items():
            ids = tokenizer.encode(text, add_special_tokens=False)
            found = measure(library, spec, ids, size, args.rows)
            release = {"library": f"{name} {version(name)}", "vocabulary": size}
            tell("grammars", release | {"case": case, "steps": len(ids)} | found, args.record)


@contextmanager
def waits(spent: list[float], work: list[float]) -> Iterator[None]:
    """Collects the seconds that selections wait for, and those that masks take a worker."""
    get, make = grammar_rows.GrammarRows.get, grammar_rows.GrammarRows._work

    def waiting(self: grammar_rows.GrammarRows) -> Any:
        seconds, found = timed(get, self)
        spent.append(seconds)
        return found

    def working(self: grammar_rows.GrammarRows, *how: Any) -> None:
        work.append(timed(make, self, *how)[0])

    grammar_rows.GrammarRows.get, grammar_rows.GrammarRows._work = waiting, working  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        grammar_rows.GrammarRows.get, grammar_rows.GrammarRows._work = get, make  # type: ignore[method-assign]


def beside(args: argparse.Namespace) -> None:
    with LLM(args.model) as llm:
        for case in ("schema", "words"):
            spec = CASES[case][0]
            for count in args.rows:
                strategy = Sample(n=count, seed=1)
                how: dict[str, Any] = {"max_tokens": args.tokens, "constraint": spec}
                llm.decode("A person:\n", strategy, **how)
                spent: list[float] = []
                work: list[float] = []
                with waits(spent, work):
                    seconds, _ = timed(llm.decode, "A person:\n", strategy, **how)
                found = {
                    "model": Path(args.model).name,
                    "case": case,
                    "rows": count,
                    "seed": strategy.seed,
                    "steps": len(work) + 1,
                    "ms_a_step": round(1e3 * seconds / (len(work) + 1), 2),
                    "masks_ms_a_step": round(1e3 * sum(work) / max(1, len(work)), 3),
                    "waited_share": round(sum(spent) / seconds, 4),
                }
                tell("grammars_beside", found, args.record)


def tell(benchmark: str, found: dict[str, Any], path: Path | None) -> None:
    print(json.dumps(found), flush=True)
    if path:
        record(benchmark, found, path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["libraries", "beside"])
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--rows", type=int, nargs="+")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    args.rows = args.rows or ([1, 16, 64] if args.what == "libraries" else [1, 16])
    {"libraries": libraries, "beside": beside}[args.what](args)


if __name__ == "__main__":
    main()
