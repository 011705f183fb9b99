"""The commands and their flags. What they do is in the modules of their names.

Engine and torch are imported when a command runs, so that --help answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkdecode.cli.flags import ENGINE_FLAGS, OPTION_FLAGS, STRATEGY_FLAGS, Debug, given, with_flags
from forkdecode.cli.serve_command import serve
from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import invalid

if TYPE_CHECKING:
    from forkdecode.cli.requests import Defaults

app = typer.Typer(
    name="forkdecode",
    help="Generate many candidates of a prompt over shared KV blocks: sampling, best-of-n, beam search.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_SOURCES = "PROMPT..., or --input with --output"
_WHERE = {
    "--overwrite": "with --output",
    "--json": "with prompts on the command line; --output is always JSON",
    "--stats": "with prompts on the command line; results in --output include their usage",
    "--logprobs": "with --json, or with --input",
}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"forkdecode {installed('forkdecode')}")
        raise typer.Exit


@app.command()
@with_flags(ENGINE_FLAGS)
def demo(
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", min=1, help="The most tokens per candidate.")
    ] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the samples.")] = 0,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Decode four prompts with four strategies in one batch, and count what sharing saves."""
    from forkdecode.cli.demo import run_demo
    from forkdecode.cli.engine import open_llm

    with open_llm(given(flags), debug=debug) as llm:
        run_demo(llm, max_tokens=max_tokens, seed=seed)


@app.command()
@with_flags(STRATEGY_FLAGS, OPTION_FLAGS, ENGINE_FLAGS)
def decode(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROMPT", help="A text; '-' reads it from stdin, dropping one trailing newline."
        ),
    ] = None,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            exists=True,
            dir_okay=False,
            help="JSONL file of requests: each line sets its own strategy and options.",
        ),
    ] = None,
    output_path: Annotated[
        Path | None,
        typer.Option("--output", help="JSONL file of results, written as they finish; resumed if it exists."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace --output instead of resuming it.")
    ] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Send each text as a user message.")] = False,
    as_json: AsJson = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print block counts, times and rates to stderr.")
    ] = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Decode prompts from the command line, or a file of requests."""
    from forkdecode.cli.decode import decode_prompts
    from forkdecode.cli.engine import open_llm
    from forkdecode.cli.requests import Defaults

    chosen = given(flags)
    engine = {name: chosen.pop(name) for name in list(chosen) if name in ENGINE_FLAGS}
    defaults = Defaults(chosen, chat=chat)
    _check_sources(prompts, input_path, output_path)
    if not prompts:
        _refuse({"--json": as_json, "--stats": stats})
        assert input_path is not None and output_path is not None  # noqa: PT018 - narrows both
        raise typer.Exit(_decode_file(input_path, output_path, defaults, engine, overwrite, debug))
    _refuse({"--overwrite": overwrite, "--logprobs": "logprobs" in chosen and not as_json})
    strategy, options = defaults.build()
    with open_llm(engine, debug=debug) as llm:
        decode_prompts(llm, prompts, strategy, options, chat=chat, as_json=as_json, stats=stats)


def _decode_file(
    requests_path: Path,
    results_path: Path,
    defaults: Defaults,
    engine: Mapping[str, Any],
    overwrite: bool,
    debug: bool,
) -> int:
    """The exit status. engine: the flags of one."""
    from forkdecode.cli.batch import FileJob, RequestFile
    from forkdecode.cli.engine import open_async_llm

    requests = RequestFile(requests_path, defaults, str(engine.get("model", DEFAULT_MODEL)))
    job = FileJob.open(requests, results_path, overwrite=overwrite)
    return job.run(lambda: open_async_llm(engine, debug=debug))


def _check_sources(prompts: list[str] | None, input_path: Path | None, output_path: Path | None) -> None:
    if prompts and (input_path or output_path):
        raise invalid("prompts", "--input and --output are for files of requests", _SOURCES)
    if not prompts and not (input_path and output_path):
        raise invalid("prompts", "none given", _SOURCES)


def _refuse(idle: Mapping[str, bool]) -> None:
    """Refuses flags that would do nothing beside the others. idle: whether each is one."""
    for flag, is_idle in idle.items():
        if is_idle:
            raise invalid(flag, "has no effect here", _WHERE[flag])


@app.command()
def replay(
    journal: Annotated[
        Path,
        typer.Argument(
            metavar="JOURNAL",
            exists=True,
            dir_okay=False,
            help="File written by `forkdecode serve --journal`.",
        ),
    ],
    until: Annotated[int | None, typer.Option("--until", min=1, help="Stop after this step.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Repeat the engine's decisions from a step journal, without the model, and show the first difference."""
    from forkdecode.cli.replay import replay_journal

    raise typer.Exit(replay_journal(journal, until=until, as_json=as_json))


trees = typer.Typer(help="Show trees as pictures.", no_args_is_help=True)
app.add_typer(trees, name="tree")


@trees.callback()
def tree() -> None:
    """Show trees as pictures."""


@trees.command()
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A tree written by Tree.save, exported nodes as JSON, or a step journal.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", dir_okay=False, help="Where to write the page; FILE.html by default."),
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Journals: show only this request or tree.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", min=1, help="Journals: stop after this step.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Journals: show texts, using this model's tokenizer."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write an HTML page showing a tree: nodes, scores, pruned branches, and KV blocks over steps."""
    from forkdecode.cli.tree import show_tree

    show_tree(file, output, only=only, until=until, tokenizer=tokenizer)


catalogues = typer.Typer(
    help="Build and inspect catalogues: sets of items that candidates can be constrained to.",
    no_args_is_help=True,
)
app.add_typer(catalogues, name="catalogue")


@catalogues.callback()
def catalogue() -> None:
    """Build and inspect catalogues: sets of items that candidates can be constrained to."""


@catalogues.command("build")
def build_catalogue(
    items: Annotated[
        Path,
        typer.Argument(
            metavar="ITEMS",
            exists=True,
            dir_okay=False,
            help='One item per line: {"id": ..., "tokens": [...]}, {"id": ..., "text": ...} or plain text.',
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", dir_okay=False, help="The catalogue to write; an existing file is replaced."
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="The model that the tokens are for; its tokenizer (or the default model's) tokenizes texts.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Build a catalogue from a file of items."""
    from forkdecode.cli.catalogue import build

    build(items, output, model=model, as_json=as_json)


@catalogues.command("info")
def catalogue_info(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="A file written by `catalogue build`."
        ),
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read a catalogue through and show what it contains."""
    from forkdecode.cli.catalogue import show

    show(file, as_json=as_json)


app.command()(serve)


@app.command()
def models(as_json: AsJson = False, debug: Debug = False) -> None:
    """List the models on this machine."""
    from forkdecode.cli.models import show_models

    show_models(as_json=as_json)
