"""A tree search in a session against the same search through ordinary requests and through transformers.

    python -m benchmarks.tree [--model M] [--prompt 1000] [--levels 4] [--ways 4] [--keep 16] [--tokens 16]
        [--sides requests-off requests-on ...] [--pairs N] [--threads N] [--record FILE]

Each level decodes every node of the frontier into --ways children of --tokens tokens and keeps the best
--keep; the last level's children are the leaves: 64 by default. What is best a checksum of the path says,
so that all sides search trees of one shape. EOS is ignored. The sides:

    requests-off, requests-on    each node decoded by one request of --ways candidates whose prompt is the
                                 path; prefix cache off, on. Their draws are the tree's, and so are their
                                 leaves, as long as rounding does not decide a draw.
    samples-off, samples-on      each child by a request of its own.
    transformers                 generate on the paths of a level as one batch, each expanded to its children.
    transformers-kept            the same by who knows its caches: rows of the cache are picked and repeated
                                 from level to level, so that nothing is computed twice, but all is copied.

The tree runs beside each side, one run each in turn, after a warm-up; ratios are the side's time over the
tree's, pairwise, by their median. A record is made after each pair, of all pairs of its side so far: the
last one of a side counts. Every run begins with a cold cache. Tokens computed are the engine's own
counts, and must be, in the tree: the prompt but its last token, then of each node decoded its last token
once and, of each child, all tokens but its last. Blocks are counted at the end of each level before what
is pruned goes, against as many blocks as its paths would need without sharing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

from benchmarks.prompts import passage
from benchmarks.record import record
from forkdecode import LLM, Sample
from forkdecode.results import EngineStats
from forkdecode.tree import lineages

Tokens: TypeAlias = tuple[int, ...]
TEMPERATURE = 0.8
FIRST_SEED = 1
"""Of the first pair; each has one of its own."""
GOAL = 0.8
"""Of the blocks of independent samples, the share that is to be saved."""
SIDES = ("requests-off", "requests-on", "samples-off", "samples-on", "transformers", "transformers-kept")


@dataclass(frozen=True)
class Shape:
    prompt: int = 1000
    levels: int = 4
    ways: int = 4
    keep: int = 16
    tokens: int = 16

    @property
    def decoded(self) -> int:
        """Nodes that are decoded."""
        return sum(self.frontier(level) for level in range(self.levels))

    def frontier(self, level: int) -> int:
        return min(self.ways**level, self.keep) if level else 1

    @property
    def least(self) -> int:
        """Tokens that a tree computes."""
        return self.prompt - 1 + self.decoded * (1 + self.ways * (self.tokens - 1))


@dataclass(frozen=True)
class Run:
    """One search. computed: tokens that went through the model. blocks: at the end of each level, of the
    pool or summed over its requests; none where there is no engine of ours."""

    seconds: float
    leaves: tuple[Tokens, ...]
    computed: int | None = None
    blocks: tuple[int, ...] = ()


def rank(path: Tokens) -> int:
    """The verifier: cheap, and the same everywhere."""
    return zlib.crc32(np.array(path, "<i8").tobytes())


def by_tree(llm: LLM, prompt: Tokens, shape: Shape, seed: int) -> Run:
    """In a session."""
    before, blocks = llm.stats(), []
    begin = time.perf_counter()
    with llm.tree(prompt, seed=seed, cache_salt=uuid.uuid4().hex) as tree:
        frontier = [tree.root]
        for level in range(shape.levels):
            found = tree.decode(
                frontier,
                Sample(n=shape.ways, temperature=TEMPERATURE),
                max_tokens=shape.tokens,
                ignore_eos=True,
            )
            blocks.append(llm.stats().used_blocks - before.used_blocks)
            if level < shape.levels - 1:
                found.sort(key=lambda node: rank(node.path_token_ids))
                if found[shape.keep :]:
                    tree.prune(found[shape.keep :])
                frontier = found[: shape.keep]
        leaves = tuple(node.path_token_ids for node in found)
        seconds = time.perf_counter() - begin
    return Run(seconds, leaves, computed(before, llm.stats()), tuple(blocks))


@dataclass(frozen=True)
class Point:
    """A node, to whoever has no tree."""

    path: Tokens
    lineage: int


def by_requests(llm: LLM, prompt: Tokens, shape: Shape, seed: int, *, each: bool) -> Run:
    """Paths as prompts. each: every child by a request of its own, whose draws are others then."""
    before, blocks, salt = llm.stats(), [], uuid.uuid4().hex
    begin = time.perf_counter()
    frontier = [Point(prompt, lineages.root_lineage(seed))]
    for _ in range(shape.levels):
        asked = [(point, lineages.decode_seed(point.lineage, 0)) for point in frontier[: shape.keep]]
        n = shape.ways
        if each:
            asked = [(p, lineages.decoded(s, i)) for p, s in asked for i in range(shape.ways)]
            n = 1
        results = llm.decode(
            [point.path for point, _ in asked],
            [Sample(n=n, temperature=TEMPERATURE, seed=own) for _, own in asked],
            max_tokens=shape.tokens,
            ignore_eos=True,
            cache_salt=salt,
        )
        blocks.append(sum(result.usage.peak_unique_blocks for result in results))
        found = [
            Point((*point.path, *candidate.token_ids), lineages.decoded(own, candidate.index))
            for (point, own), result in zip(asked, results, strict=True)
            for candidate in result.candidates
        ]
        frontier = sorted(found, key=lambda point: rank(point.path))
    seconds = time.perf_counter() - begin
    return Run(seconds, tuple(p.path for p in found), computed(before, llm.stats()), tuple(blocks))


def by_transformers(model: Any, prompt: Tokens, shape: Shape, seed: int) -> Run:
    """The paths of a level are equally long: one batch without padding."""
    import torch

    torch.manual_seed(seed)
    begin = time.perf_counter()
    frontier = [prompt]
    for _ in range(shape.levels):
        rows = torch.tensor([list(path) for path in frontier[: shape.keep]])
        with torch.inference_mode():
            out = model.generate(
                rows,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
                num_return_sequences=shape.ways,
                max_new_tokens=shape.tokens,
                pad_token_id=0,
            )
        found = [tuple(row) for row in out.tolist()]
        frontier = sorted(found, key=rank)
    return Run(time.perf_counter() - begin, tuple(found))


def by_transformers_kept(model: Any, prompt: Tokens, shape: Shape, seed: int) -> Run:
    """KV of the frontier lies in a cache, a row each; the last token of each row is not in it yet."""
    import torch

    torch.manual_seed(seed)
    begin = time.perf_counter()
    rows, found = torch.tensor([list(prompt)]), [prompt]
    with torch.inference_mode():
        cache = model(rows[:, :-1], use_cache=True, logits_to_keep=1).past_key_values
        for level in range(shape.levels):
            if level:
                picked = sorted(range(len(found)), key=lambda i: rank(found[i]))[: shape.keep]
                cache.batch_select_indices(torch.tensor(picked))
                rows = rows[picked]
            cache.batch_repeat_interleave(shape.ways)
            rows = rows.repeat_interleave(shape.ways, dim=0)
            out = model.generate(
                rows,
                past_key_values=cache,
                attention_mask=torch.ones_like(rows),
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
                max_new_tokens=shape.tokens,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
            rows, cache = out.sequences, out.past_key_values
            found = [tuple(row) for row in rows.tolist()]
    return Run(time.perf_counter() - begin, tuple(found))


def computed(before: EngineStats, after: EngineStats) -> int:
    first, last = (stats.prefill_tokens + stats.decoded_rows for stats in (before, after))
    return last - first


def unshared(shape: Shape, block_size: int) -> tuple[int, ...]:
    """Blocks of each level's children if each were a sample of its own: the last token needs none yet."""
    return tuple(
        shape.frontier(level) * shape.ways * -(-(shape.prompt + (level + 1) * shape.tokens - 1) // block_size)
        for level in range(shape.levels)
    )


def check_tree(run: Run, shape: Shape, block_size: int) -> float:
    """The share of blocks saved where most are held. Raises SystemExit where the tree computes a token
    twice or saves too little of a search of the default's size."""
    if run.computed != shape.least:
        raise SystemExit(f"the tree computed {run.computed} tokens, not {shape.least}")
    saved = 1 - max(run.blocks) / max(unshared(shape, block_size))
    if saved < GOAL and shape.prompt >= Shape.prompt:
        raise SystemExit(f"the tree saves {saved:.1%} of the blocks, less than {GOAL:.0%}")
    return saved


Side: TypeAlias = Callable[[Tokens, Shape, int], Run]


def open_side(name: str, args: argparse.Namespace, tree_llm: LLM) -> Side:
    """How a side runs a search."""
    if name.startswith("transformers"):
        import torch

        from forkdecode.model.loader import load

        torch.set_num_threads(args.threads)
        model = load(args.model, args.dtype).model
        model.generation_config.eos_token_id = None
        by = by_transformers_kept if name.endswith("-kept") else by_transformers
        return lambda prompt, shape, seed: by(model, prompt, shape, seed)
    llm = tree_llm if name.endswith("-on") else open_llm(args, prefix_cache=False)
    each = name.startswith("samples")
    return lambda prompt, shape, seed: by_requests(llm, prompt, shape, seed, each=each)


def open_llm(args: argparse.Namespace, *, prefix_cache: bool) -> LLM:
    return LLM(args.model, dtype=args.dtype, threads=args.threads, prefix_cache=prefix_cache)


Pair: TypeAlias = tuple[Run, Run]


def paired(tree: Side, side: Side, prompt: Tokens, shape: Shape, pairs: int) -> Iterator[Pair]:
    """Runs in turn, each pair as soon as it is done."""
    small = Shape(len(prompt[:32]), 2, shape.ways, 2, 2)
    for warm in (tree, side):
        warm(prompt[:32], small, 0)
    for seed in range(FIRST_SEED, FIRST_SEED + pairs):
        yield tree(prompt, shape, seed), side(prompt, shape, seed)


def compared(name: str, runs: Sequence[Pair]) -> dict[str, Any]:
    """What the pairs so far say."""
    ratios = [theirs.seconds / ours.seconds for ours, theirs in runs]
    ours, theirs = runs[0]
    return {
        "side": name,
        "pairs": len(runs),
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "tree_seconds": statistics.median(ours.seconds for ours, _ in runs),
        "side_seconds": statistics.median(theirs.seconds for _, theirs in runs),
        "same_leaves": len({*ours.leaves} & {*theirs.leaves}) / len({*ours.leaves}),
        "tree_computed": ours.computed,
        "side_computed": theirs.computed,
        "tree_blocks": ours.blocks,
        "side_blocks": theirs.blocks,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32")
    for field, value in asdict(Shape()).items():
        parser.add_argument(f"--{field}", type=int, default=value)
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=["requests-off", "requests-on"])
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--record", type=Path)
    args = parser.parse_args(argv)
    shape = Shape(**{field: getattr(args, field) for field in asdict(Shape())})
    llm = open_llm(args, prefix_cache=True)
    prompt, block_size = tuple(passage(llm.tokenizer, shape.prompt)), llm.stats().block_size

    def tree(prompt: Tokens, shape: Shape, seed: int) -> Run:
        run = by_tree(llm, prompt, shape, seed)
        check_tree(run, shape, block_size)
        return run

    alone = tree(prompt, shape, 0)
    saved = check_tree(alone, shape, block_size)
    settings = {
        "model": Path(args.model).name,
        "dtype": args.dtype,
        "threads": args.threads,
        "seed": FIRST_SEED,
    } | asdict(shape)
    settings |= {"leaves": len(alone.leaves), "saved": saved, "unshared_blocks": unshared(shape, block_size)}
    print(
        f"{len(alone.leaves)} leaves: at most {max(alone.blocks)} blocks of {block_size}, "
        f"{max(unshared(shape, block_size))} without sharing: {saved:.1%} saved; "
        f"{alone.computed} tokens computed, each once",
        flush=True,
    )
    for name in args.sides:
        runs: list[Pair] = []
        for pair in paired(tree, open_side(name, args, llm), prompt, shape, args.pairs):
            runs.append(pair)
            found = compared(name, runs)
            record("tree", settings | found, args.record)
            low, high = found["ratio_range"]
            told = f"{name:17s} {found['ratio']:6.2f} x the tree's time ({low:.2f} to {high:.2f})"
            tokens = found["side_computed"] or "unknown"
            print(f"{told}, pair {len(runs)}, {tokens} tokens computed", flush=True)
    llm.close()


if __name__ == "__main__":
    main()
