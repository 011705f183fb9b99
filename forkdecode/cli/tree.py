"""`forkdecode tree show`: a page of a saved tree, of exported nodes, or of a step journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from forkdecode.calls.picture import Picture, page
from forkdecode.calls.tree.exported import exported_picture
from forkdecode.calls.tree.saved import SAVED, read_json
from forkdecode.cli.tokenizer import open_tokenizer
from forkdecode.errors import invalid
from forkdecode.tree_types import NodePath


def show_tree(
    path: Path, output: Path | None, *, only: str | None, until: int | None, tokenizer: str | None
) -> None:
    """Writes the page, beside the file unless `output` says where. Raises InvalidRequestError, OSError."""
    picture = _journal(path, only, until, tokenizer) if _is_journal(path) else _saved(path)
    target = path.with_name(path.name + ".html") if output is None else output
    target.write_text(page(picture), "ascii")
    typer.echo(f"{target}: {len(picture.nodes):,} nodes, {len(picture.steps):,} steps")


def _is_journal(path: Path) -> bool:
    from forkdecode.engine.journal_file import MAGIC

    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def _saved(path: Path) -> Picture:
    plain = read_json(path, "file")
    if isinstance(plain, dict) and "format" in plain:
        return Picture.of_json(plain)
    items = plain if isinstance(plain, list) else [plain]
    if not items:
        raise invalid("file", f"{str(path)!r} contains no nodes", f"{SAVED}, or a step journal")
    return exported_picture(path.name, [NodePath.of_json(item) for item in items])


def _journal(path: Path, only: str | None, until: int | None, tokenizer: str | None) -> Picture:
    from forkdecode.engine.journal_picture import journal_picture

    bytes_of = None if tokenizer is None else _opened(tokenizer).of
    return journal_picture(path, only, until, bytes_of)


def _opened(name: str) -> Any:
    """The bytes of a tokenizer's tokens. Raises InvalidRequestError."""
    from forkdecode.text.token_bytes import token_bytes

    return token_bytes(open_tokenizer("tokenizer", name))
