"""What 8-bit weights cost in quality and save in time.

    python -m benchmarks.int8 [--model M] [--tokens N] [--steps N] [--record FILE]

Both engines in one process, native first. Perplexity: of the documentation of this project and of openings
of books (benchmarks/prompts.py), in pieces of 512 tokens, of all but each piece's first 32. Equal greedy
tokens: 12 prompts are decoded natively, and then each of their tokens is asked for again, given the same
tokens before it; beside it, how many tokens are the same until the first that differs, when both decode
freely. Time: the thread's CPU time of a step, one thread, the engines in turn, medians.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from pathlib import Path
from typing import Any, get_args

from benchmarks.prompts import passage
from benchmarks.record import record
from forkdecode.config import Weights

PIECE, READ_FIRST, PROMPTS, PROMPT = 512, 32, 12, 48
ROWS = (16, 64, 128)
DOCS = Path(__file__).parent.parent / "docs"


def perplexity(llm: Any, pieces: list[list[int]]) -> float:
    """exp of the mean negative log-probability."""
    logprobs: list[float] = []
    for piece in pieces:
        scored = llm.score(piece[:READ_FIRST], [piece[READ_FIRST:]])
        logprobs += [token.logprob for token in scored.continuations[0].logprobs]
    return math.exp(-statistics.fmean(logprobs))


def texts(llm: Any) -> dict[str, list[list[int]]]:
    """Pieces of PIECE tokens, by kind of text."""
    written = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")) if path.stem != "performance")
    ids = llm.tokenizer.encode(written)
    books = passage(llm.tokenizer, 3 * PIECE)
    found = {"documentation": ids[: 16 * PIECE], "books": books}
    return {
        name: [of[i : i + PIECE] for i in range(0, len(of) - PIECE + 1, PIECE)] for name, of in found.items()
    }


def greedy(llm: Any, prompts: list[list[int]], tokens: int) -> list[tuple[int, ...]]:
    found = llm.decode(prompts, max_tokens=tokens, ignore_eos=True)
    return [result.candidates[0].token_ids for result in found]


def agreement(native: Any, int8: Any, tokens: int) -> tuple[float, float]:
    """Shares of equal greedy tokens: given the same tokens before, and until the first that differs."""
    prompts = [passage(native.tokenizer, PROMPT, offset=i) for i in range(PROMPTS)]
    expected = greedy(native, prompts, tokens)
    paths = [
        [*prompt, *path[:i]] for prompt, path in zip(prompts, expected, strict=True) for i in range(tokens)
    ]
    asked = [path[0] for path in greedy(int8, paths, 1)]
    wanted = [token for path in expected for token in path]
    free = [
        next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), tokens)
        for one, other in zip(expected, greedy(int8, prompts, tokens), strict=True)
    ]
    same = sum(a == b for a, b in zip(asked, wanted, strict=True))
    return same / len(wanted), sum(free) / (tokens * PROMPTS)


class Stepper:
    """An engine whose steps of so many rows are taken one by one."""

    def __init__(self, model: str, weights: Weights) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        loaded = load(model)
        self._tokenizer = loaded.tokenizer
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        config = EngineConfig(prefix_cache=False, weights=weights, kv_memory="1GiB")
        self._engine, _ = build_engine(loaded, config, 1)

    def start(self, rows: int, steps: int) -> None:
        """rows / 8 prompts of 100 tokens, 8 samples each, their prompts read."""
        from forkdecode import Options, Sample

        options = Options(max_tokens=steps + 4, ignore_eos=True)
        for i in range(rows // 8):
            prompt = passage(self._tokenizer, 100, offset=i)
            self._engine.submit(self._resolver.resolve(prompt, Sample(8, seed=i), options, request_id=f"{i}"))
        self._engine.step()
        self._engine.step()
        self._engine.step()

    def step(self) -> float:
        """Milliseconds of CPU time."""
        begin = time.thread_time()
        self._engine.step()
        return (time.thread_time() - begin) * 1e3

    def finish(self) -> None:
        while self._engine.has_work:
            self._engine.step()


def times(model: str, steps: int) -> dict[int, tuple[float, float, float]]:
    """By rows: ms a step of either, and the median of the steps' ratios."""
    engines = [Stepper(model, weights) for weights in get_args(Weights)]
    found = {}
    for rows in ROWS:
        for engine in engines:
            engine.start(rows, steps)
        pairs = [[engine.step() for engine in engines] for _ in range(steps)]
        for engine in engines:
            engine.finish()
        native, int8 = (statistics.median(column) for column in zip(*pairs, strict=True))
        found[rows] = (native, int8, statistics.median(a / b for a, b in pairs))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    from forkdecode import LLM

    settings = {"model": Path(args.model).name, "tokens": args.tokens, "prompts": PROMPTS, "seed": 0}
    found: dict[str, Any] = dict(settings)
    with (
        LLM(args.model, kv_memory="1GiB") as native,
        LLM(args.model, weights="int8", kv_memory="1GiB") as int8,
    ):
        for name, pieces in texts(native).items():
            found[name] = (perplexity(native, pieces), perplexity(int8, pieces), len(pieces) * PIECE)
            print(f"perplexity of {name}: {found[name][0]:.3f}, int8 {found[name][1]:.3f}", flush=True)
        found["greedy"] = agreement(native, int8, args.tokens)
        print("equal greedy tokens: {:.1%}; until the first that differs {:.1%}".format(*found["greedy"]))
    found["ms"] = times(args.model, args.steps)
    for rows, (one, other, ratio) in found["ms"].items():
        print(f"{rows} rows: {one:.0f} ms a step, int8 {other:.0f} ms, ratio {ratio:.2f}")
    record("int8", found, args.record)


if __name__ == "__main__":
    main()
