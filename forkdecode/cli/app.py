"""The commands and their flags. What they do is in the modules of their names.

Engine and torch are imported when a command runs, so that --help answers at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from forkdecode.cli.flags import ENGINE_FLAGS, OPTION_FLAGS, STRATEGY_FLAGS, Debug, given, with_flags
from forkdecode.cli.serve_command import serve
from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import InvalidRequestError, invalid

app = typer.Typer(
    name="forkdecode",
    help="Many candidates of a prompt over shared KV blocks: sampling, best-of-n, beam search.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_WHERE = {
    "--overwrite": "with --output",
    "--json": "with prompts given here; --output is JSON anyway",
    "--stats": "with prompts given here; a result in --output has its usage",
    "--logprobs": "with --json, or with --input",
}
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


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
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Tokens a candidate.")] = 64,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the samples.")] = 0,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Decode real prompts by four strategies in one batch, and count what sharing saves."""
    from forkdecode.cli.demo import run_demo
    from forkdecode.cli.engine import open_llm

    with open_llm(given(flags), debug=debug) as llm:
        run_demo(llm, max_tokens=max_tokens, seed=seed)


@app.command()
@with_flags(STRATEGY_FLAGS, OPTION_FLAGS, ENGINE_FLAGS)
def decode(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="'-' reads stdin, without its last newline.")
    ] = None,
    input_path: Annotated[
        Path | None,
        typer.Option(
            "--input",
            exists=True,
            dir_okay=False,
            help="JSONL: a request a line, with its own strategy and options.",
        ),
    ] = None,
    output_path: Annotated[
        Path | None,
        typer.Option("--output", help="JSONL of results as they finish; resumed where it exists."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start --output anew.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="Wrap each text as a user message.")] = False,
    as_json: AsJson = False,
    stats: Annotated[bool, typer.Option("--stats", help="Blocks, times and rates, on stderr.")] = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Decode prompts given here, or a file of requests."""
    from forkdecode.cli.batch import FileJob, RequestFile
    from forkdecode.cli.decode import decode_prompts
    from forkdecode.cli.engine import open_async_llm, open_llm
    from forkdecode.cli.requests import Defaults

    chosen = given(flags)
    engine = {name: chosen.pop(name) for name in list(chosen) if name in ENGINE_FLAGS}
    defaults = Defaults(chosen, chat=chat)
    _check_sources(prompts, input_path, output_path)
    if prompts:
        _refuse({"--overwrite": overwrite, "--logprobs": "logprobs" in chosen and not as_json})
    else:
        _refuse({"--json": as_json, "--stats": stats})
    if prompts:
        strategy, options = defaults.build()
        with open_llm(engine, debug=debug) as llm:
            decode_prompts(llm, prompts, strategy, options, chat=chat, as_json=as_json, stats=stats)
        return
    assert input_path is not None and output_path is not None  # noqa: PT018 - narrows both
    requests = RequestFile(input_path, defaults, str(engine.get("model", DEFAULT_MODEL)))
    job = FileJob.open(requests, output_path, overwrite=overwrite)
    raise typer.Exit(job.run(lambda: open_async_llm(engine, debug=debug)))


def _check_sources(prompts: list[str] | None, input_path: Path | None, output_path: Path | None) -> None:
    if prompts and (input_path or output_path):
        raise InvalidRequestError(
            "prompts: --input and --output are for files of requests; give one or the other"
        )
    if not prompts and not (input_path and output_path):
        raise InvalidRequestError("prompts: none given; allowed: PROMPT..., or --input with --output")


def _refuse(idle: Mapping[str, bool]) -> None:
    """Refuses flags that would do nothing beside the others. idle: whether each is one."""
    for flag, is_idle in idle.items():
        if is_idle:
            raise invalid(flag, "does nothing here", _WHERE[flag])


@app.command()
def replay(
    journal: Annotated[
        Path,
        typer.Argument(metavar="JOURNAL", exists=True, dir_okay=False, help="What serve --journal wrote."),
    ],
    until: Annotated[int | None, typer.Option("--until", min=1, help="Stop after this step.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Re-run the decisions of a step journal without a model, and say where they break."""
    from forkdecode.cli.replay import replay_journal

    raise typer.Exit(replay_journal(journal, until=until, as_json=as_json))


trees = typer.Typer(help="Pictures of trees.", no_args_is_help=True)
app.add_typer(trees, name="tree")


@trees.callback()
def tree() -> None:
    """Pictures of trees."""


@trees.command()
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", exists=True, dir_okay=False, help="Of Tree.save, Tree.export or serve --journal."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", dir_okay=False, help="The page; FILE.html by default.")
    ] = None,
    only: Annotated[
        str | None, typer.Option("--only", help="Of a journal: this request or this tree alone.")
    ] = None,
    until: Annotated[
        int | None, typer.Option("--until", min=1, help="Of a journal: stop after this step.")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option("--tokenizer", help="Of a journal: the model whose tokens it holds, for texts."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Write one HTML page that shows a tree: nodes, scores, what was pruned, and KV blocks over steps."""
    from forkdecode.cli.tree import show_tree

    show_tree(file, output, only=only, until=until, tokenizer=tokenizer)


catalogues = typer.Typer(help="Sets of items that candidates are held to.", no_args_is_help=True)
app.add_typer(catalogues, name="catalogue")


@catalogues.callback()
def catalogue() -> None:
    """Sets of items that candidates are held to."""


@catalogues.command("build")
def build_catalogue(
    items: Annotated[
        Path,
        typer.Argument(
            metavar="ITEMS",
            exists=True,
            dir_okay=False,
            help='A line an item: {"id": ..., "tokens": [...]}, {"id": ..., "text": ...}, or plain text.',
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", dir_okay=False, help="The catalogue; one that is there is replaced."),
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Whose tokens these are; its tokenizer makes those of texts (else the default model's).",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a catalogue of a file of items."""
    from forkdecode.cli.catalogue import build

    build(items, output, model=model, as_json=as_json)


@catalogues.command("info")
def catalogue_info(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="Of `catalogue build`.")
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Read through a catalogue and say what it holds."""
    from forkdecode.cli.catalogue import show

    show(file, as_json=as_json)


app.command()(serve)


@app.command()
def models(as_json: AsJson = False, debug: Debug = False) -> None:
    """Show which models are on this machine."""
    from forkdecode.cli.models import show_models

    show_models(as_json=as_json)
