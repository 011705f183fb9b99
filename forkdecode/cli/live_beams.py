"""A beam search as it runs, on a terminal: what is final, and below it what may yet change."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from forkdecode.llm import LLM
from forkdecode.results import BeamUpdate, Committed, DecodeResult, Finished
from forkdecode.types import Options, Strategy


def watch_beams(
    llm: LLM, prompt: str, strategy: Strategy, options: Options, console: Console, *, chat: bool
) -> DecodeResult:
    """Decode, showing the committed text and the live hypotheses as `options` says; at the end the view
    is gone again."""
    final, beams = "", BeamUpdate("", 0, (), 0)
    with Live(console=console, transient=True) as live:
        for event in llm.stream(prompt, strategy, options=options, chat=chat):
            if isinstance(event, Finished):
                return event.result
            if isinstance(event, Committed):
                final += event.text
            elif isinstance(event, BeamUpdate):
                beams = event
            else:
                continue
            live.update(_view(final, beams))
    raise AssertionError("a stream ends with Finished or raises")


def _view(final: str, update: BeamUpdate) -> Group:
    rests = [Text(f"{beam.score:8.3f}  …{beam.text}", style="dim") for beam in update.beams]
    return Group(Text(final), *rests)
