"""`forkdecode decode`: prompts from the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace

import typer
from rich.console import Console
from rich.text import Text

from forkdecode.cli.live_beams import watch_beams
from forkdecode.cli.render import candidates_shown, result_record, usage_lines
from forkdecode.errors import invalid
from forkdecode.llm import LLM
from forkdecode.results import Committed, DecodeResult, Delta, Finished
from forkdecode.types import BEAMS, Greedy, Options, Sample, StochasticBeam, Strategy


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
    """Decode and print: JSON lines, a stream of text for one candidate, else tables. One beam search is
    shown as it runs, where that is a terminal."""
    texts = [_read_stdin() if prompt == "-" else prompt for prompt in prompts]
    alone = len(texts) == 1 and not as_json
    console = Console()
    if alone and isinstance(strategy, BEAMS) and console.is_terminal and options.update_every:
        results = [watch_beams(llm, texts[0], strategy, options, console, chat=chat)]
        if _is_single(strategy):
            typer.echo(results[0].text)
        else:
            _print_result(texts[0], results[0], titled=False)
    elif alone and _is_single(strategy):
        results = [_stream(llm, texts[0], strategy, options, chat=chat)]
    else:
        results = llm.decode(texts, strategy, options=options, chat=chat)
        for text, result in zip(texts, results, strict=True):
            _print_json(result) if as_json else _print_result(text, result, titled=len(texts) > 1)
    if stats:
        for result in results:
            typer.echo(usage_lines(result.usage), err=True)


def _read_stdin() -> str:
    """Without what editors begin a text with and `echo` ends one with. Raises InvalidRequestError."""
    try:
        return sys.stdin.read().removeprefix("\ufeff").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise invalid("prompt", f"is not UTF-8 ({error.reason})", "UTF-8 on stdin") from None


def _is_single(strategy: Strategy) -> bool:
    """Whether there is one candidate in the end."""
    if isinstance(strategy, StochasticBeam):
        return strategy.width == 1
    if isinstance(strategy, BEAMS):
        return (strategy.num_return_sequences or strategy.pool_size) == 1
    return isinstance(strategy, Greedy) or (isinstance(strategy, Sample) and strategy.n == 1)


def _stream(llm: LLM, prompt: str, strategy: Strategy, options: Options, *, chat: bool) -> DecodeResult:
    """Print one candidate's text as it becomes certain."""
    if isinstance(strategy, BEAMS):
        options = replace(options, update_every=0)
    result: DecodeResult | None = None
    told = 0
    for event in llm.stream(prompt, strategy, options=options, chat=chat):
        if isinstance(event, (Delta, Committed)):
            typer.echo(event.text, nl=False)
            sys.stdout.flush()
            told += len(event.text)
        elif isinstance(event, Finished):
            result = event.result
    assert result is not None, "a stream ends with Finished or raises"
    typer.echo(result.text[told:])
    return result


def _print_json(result: DecodeResult) -> None:
    typer.echo(json.dumps(result_record(result), ensure_ascii=False))


def _print_result(prompt: str, result: DecodeResult, *, titled: bool) -> None:
    console = Console()
    if titled:
        console.print(Text(" ".join(prompt.split()), style="bold", overflow="ellipsis", no_wrap=True))
    console.print(candidates_shown(result, console.width))
