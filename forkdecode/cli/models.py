"""`forkdecode models`: what is on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from forkdecode.model.default_model import SMOLLM2


@dataclass(frozen=True, slots=True)
class Listed:
    """A model: name for --model, where it is, and its bytes on disk; None where it isn't there yet."""

    name: str
    source: str
    path: str
    size: int | None


def listed_models() -> Iterator[Listed]:
    """The default model, cached or not, and what the hub's cache holds of models."""
    folder = SMOLLM2.folder
    size = sum(f.stat().st_size for f in folder.iterdir()) if SMOLLM2.is_cached else None
    yield Listed(SMOLLM2.name, "default", str(folder), size)
    yield from _hub_models()


def _hub_models() -> Iterator[Listed]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in sorted(repos, key=lambda r: r.repo_id):
        files = {f.file_name for revision in repo.revisions for f in revision.files}
        if repo.repo_type == "model" and "config.json" in files:
            yield Listed(repo.repo_id, "hub", str(Path(repo.repo_path)), repo.size_on_disk)


def show_models(*, as_json: bool) -> None:
    """Print them."""
    if as_json:
        for model in listed_models():
            typer.echo(json.dumps(asdict(model)))
        return
    table = Table(box=None, padding=(0, 2), header_style="dim")
    for column in ("model", "from", "size", "folder"):
        table.add_column(column, justify="right" if column == "size" else "left", overflow="fold")
    for model in listed_models():
        size = "not downloaded yet" if model.size is None else f"{model.size / 1e6:,.0f} MB"
        table.add_row(model.name, model.source, size, model.path)
    Console().print(table)
