"""`forkdecode decode`: prompts from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import typer
from rich.console import Console
from rich.text import Text

from forkdecode.cli.render import candidate_table, result_record, usage_lines
from forkdecode.llm import LLM
from forkdecode.results import DecodeResult, Delta, Finished
from forkdecode.types import Greedy, Options, Sample, Strategy


def decode_prompts(
    llm: LLM,
    prompts: Sequence[str],
    strategy: Strategy,
    options: Options,
    *,
    chat: bool,
    as_json: bool,
    stats: bool,
) -> None:
    """Decode and print: JSON lines, a stream of text for one candidate, else tables."""
    texts = [sys.stdin.read() if prompt == "-" else prompt for prompt in prompts]
    single = isinstance(strategy, Greedy) or (isinstance(strategy, Sample) and strategy.n == 1)
    if single and len(texts) == 1 and not as_json:
        results = [_stream(llm, texts[0], strategy, options, chat=chat)]
    else:
        results = llm.decode(texts, strategy, options=options, chat=chat)
        for text, result in zip(texts, results, strict=True):
            _print_json(result) if as_json else _print_result(text, result, titled=len(texts) > 1)
    if stats:
        for result in results:
            typer.echo(usage_lines(result.usage), err=True)


def _stream(llm: LLM, prompt: str, strategy: Strategy, options: Options, *, chat: bool) -> DecodeResult:
    """Print one candidate's text as it becomes certain."""
    result: DecodeResult | None = None
    for event in llm.stream(prompt, strategy, options=options, chat=chat):
        if isinstance(event, Delta):
            typer.echo(event.text, nl=False)
            sys.stdout.flush()
        elif isinstance(event, Finished):
            result = event.result
    typer.echo()
    assert result is not None, "a stream ends with Finished or raises"
    return result


def _print_json(result: DecodeResult) -> None:
    typer.echo(json.dumps(result_record(result), ensure_ascii=False))


def _print_result(prompt: str, result: DecodeResult, *, titled: bool) -> None:
    console = Console()
    if titled:
        console.print(Text(" ".join(prompt.split()), style="bold", overflow="ellipsis", no_wrap=True))
    console.print(candidate_table(result))
