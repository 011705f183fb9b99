"""`forkdecode demo`: four strategies in one batch, and what sharing saves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.live import Live
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from forkdecode.cli.demo_prompts import ARTICLE, EMAIL, RECIPE, STORY
from forkdecode.cli.render import candidates_shown
from forkdecode.llm import LLM, Handle
from forkdecode.results import DecodeResult, EngineStats
from forkdecode.types import Beam, BestOf, Greedy, Sample, Strategy

REFRESH = 0.1
LONGEST = 110
"""Characters of a candidate that are shown."""


@dataclass(frozen=True, slots=True)
class Case:
    title: str
    prompt: str
    strategy: Strategy


def cases(seed: int) -> tuple[Case, ...]:
    return (
        Case("greedy", RECIPE, Greedy()),
        Case("8 samples", STORY, Sample(n=8, temperature=0.8, top_p=0.95, seed=seed)),
        Case(
            "best 3 of 8", EMAIL, BestOf(best_of=8, n=3, temperature=0.8, rank_by="mean_logprob", seed=seed)
        ),
        Case("beam of 4", ARTICLE, Beam(width=4)),
    )


def run_demo(llm: LLM, *, max_tokens: int, seed: int) -> None:
    """Submit all cases, watch them run together, then print candidates and the table of blocks."""
    console = Console()
    chosen = cases(seed)
    chat = getattr(llm.tokenizer, "chat_template", None) is not None
    before, start = llm.stats(), time.perf_counter()
    handles = [llm.submit(case.prompt, case.strategy, max_tokens=max_tokens, chat=chat) for case in chosen]
    results = []
    try:
        with Live(Text("starting"), console=console, refresh_per_second=10, transient=True) as live:
            for handle in handles:
                while (result := _wait(handle)) is None:
                    live.update(_progress(llm.stats(), before, time.perf_counter() - start))
                results.append(result)
    except KeyboardInterrupt:
        for handle in handles:
            handle.cancel()
        raise
    elapsed = time.perf_counter() - start
    for case, result in zip(chosen, results, strict=True):
        _print_case(console, case, result)
    console.print(
        Rule("KV blocks: each strategy at its peak, the batch averaged over its steps", align="left")
    )
    console.print(_block_table(chosen, results, llm.stats(), before, elapsed))


def _wait(handle: Handle) -> DecodeResult | None:
    try:
        return handle.result(timeout=REFRESH)
    except TimeoutError:
        return None


def _progress(now: EngineStats, before: EngineStats, elapsed: float) -> Text:
    tokens = now.generated_tokens - before.generated_tokens
    return Text(
        f"step {now.steps - before.steps}: {now.running_groups} groups, {now.running_rows} rows, "
        f"{tokens} tokens, {tokens / elapsed:.0f} tokens/s, "
        f"{now.used_blocks} of {now.total_blocks} blocks in use"
    )


def _print_case(console: Console, case: Case, result: DecodeResult) -> None:
    console.print(Rule(f"{case.title}: {' '.join(case.prompt.split())[:70]}…", align="left"))
    console.print(candidates_shown(result, console.width, longest=LONGEST))
    console.print()


def _block_table(
    chosen: Sequence[Case],
    results: Sequence[DecodeResult],
    after: EngineStats,
    before: EngineStats,
    elapsed: float,
) -> Table:
    """A line a strategy at its own peak; the sum is over all steps of the batch."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("\nstrategy", no_wrap=True)
    for name in (
        "without\nsharing",
        "with\nsharing",
        "\nsaved",
        "\ncopies",
        "\nwaste",
        "\ntokens",
        "\ntokens/s",
    ):
        table.add_column(name, justify="right")
    for case, result in zip(chosen, results, strict=True):
        usage = result.usage
        blocks = str(usage.peak_unshared_blocks), str(usage.peak_unique_blocks)
        rate = f"{usage.generated_tokens / usage.total_time:.0f}"
        table.add_row(
            case.title,
            *blocks,
            f"{usage.saved:.1%}",
            str(usage.copies),
            "",
            str(usage.generated_tokens),
            rate,
        )
    unshared = after.unshared_block_steps - before.unshared_block_steps
    unique = after.unique_block_steps - before.unique_block_steps
    steps = after.steps - before.steps
    waste = (after.wasted_slot_steps - before.wasted_slot_steps) / (unique * after.block_size)
    tokens = after.generated_tokens - before.generated_tokens
    table.add_section()
    table.add_row(
        "batch", f"{unshared / steps:.0f}", f"{unique / steps:.0f}",
        f"{1 - unique / unshared:.1%}", str(after.copies - before.copies), f"{waste:.1%}",
        str(tokens), f"{tokens / elapsed:.0f}", style="bold",
    )  # fmt: skip
    return table
