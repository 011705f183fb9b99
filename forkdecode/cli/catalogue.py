"""`forkdecode catalogue`: from a file of items to a catalogue, and what is in one."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from forkdecode.cli.tokenizer import open_tokenizer
from forkdecode.config import DEFAULT_MODEL
from forkdecode.constraints.catalogue_build import CatalogueBuilder
from forkdecode.constraints.catalogue_file import open_catalogue, save_catalogue
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.model.tokenizer import encode_all
from forkdecode.text_file import without_mark

_BATCH = 4096
"""Lines that are tokenized together."""
_LINE = '{"tokens": [...]} or {"text": ...}, each with an "id" if it has a name'
Content: TypeAlias = str | list[Any]
"""Of an item: its text, or its tokens, not checked yet."""


@dataclass(frozen=True, slots=True)
class _Item:
    number: int
    key: str | None
    content: Content


def build(source: Path, output: Path, *, model: str | None, as_json: bool) -> None:
    """Writes the catalogue of a file's lines. Raises InvalidRequestError naming the line, OSError."""
    builder = CatalogueBuilder(first=1)
    tokens_of = _Tokens(model)
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with source.open("rb") as file, bar as progress:
        task = progress.add_task("reading", total=source.stat().st_size)
        for batch in _batches(_items(without_mark(file)), _BATCH):
            for item, tokens in zip(batch, tokens_of.each(batch), strict=True):
                _add(builder, item, tokens)
            progress.update(task, completed=file.tell())
    if not len(builder):
        raise invalid("file", f"{str(source)!r} has no items", "one item per line")
    save_catalogue(builder.build(tokens_of.model), output)
    show(output, as_json=as_json)


def show(path: Path, *, as_json: bool) -> None:
    """What a catalogue holds, read through. Raises InvalidRequestError for one that is damaged."""
    catalogue = open_catalogue(path)
    catalogue.check()
    info = catalogue.info
    facts = {**dataclasses.asdict(info), "bytes": path.stat().st_size}
    if as_json:
        typer.echo(json.dumps(facts))
        return
    table = Table(box=None, padding=(0, 1), show_header=False, show_edge=False)
    lengths = f"{info.depth}" if info.shortest == info.depth else f"{info.shortest} to {info.depth}"
    rows = {
        "file": str(path),
        "items": f"{info.items:,}"
        + (f" ({info.duplicates:,} duplicates left out)" if info.duplicates else ""),
        "tokens per item": lengths,
        "token ids": f"up to {info.highest:,}",
        "ends": f"by EOS only: {info.prefixes:,} items are prefixes of others"
        if info.prefixes
        else "by EOS, or with the item",
        "nodes": f"{info.nodes:,}",
        "bytes": f"{facts['bytes']:,}",
        "model": info.model or "not given",
        "digest": info.digest,
    }
    for name, value in rows.items():
        table.add_row(name, value)
    Console().print(table)


def _add(builder: CatalogueBuilder, item: _Item, tokens: Sequence[int]) -> None:
    try:
        builder.add(tokens, item.key)
    except InvalidRequestError as error:
        problem = str(error).split(":", 1)[1].rsplit("; allowed:", 1)[0].strip()
        part = "id" if error.field == "keys" else "tokens"
        raise _wrong(item.number, f"its {part}: {problem}", error.limit or _LINE) from None


def _wrong(line: int, problem: str, allowed: str = _LINE) -> InvalidRequestError:
    return invalid(f"line {line}", problem, allowed)


def _batches(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    taken = iter(items)
    while batch := list(itertools.islice(taken, size)):
        yield batch


def _items(lines: Iterable[bytes]) -> Iterator[_Item]:
    """Items of JSON, or texts: the first line says which. Empty lines may stand at the end alone."""
    is_json: bool | None = None
    empty = last = 0
    all_json = True
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip(b"\r\n")
        if not line.strip():
            empty = empty or number
            continue
        if empty:
            raise _wrong(empty, "is empty", "one item per line")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _wrong(number, f"is not UTF-8 ({error.reason})", "UTF-8") from None
        if is_json is None:
            is_json = text.lstrip().startswith("{")
        elif not is_json:
            all_json = all_json and _is_item(number, text)
        last = number
        yield _parsed(number, text) if is_json else _Item(number, None, text)
    if not is_json and last > 1 and all_json:
        raise _wrong(
            1, "is plain text, but all other lines are items in JSON", f"{_LINE}; or plain text on every line"
        )


def _is_item(number: int, text: str) -> bool:
    try:
        _parsed(number, text)
    except InvalidRequestError:
        return False
    return True


def _parsed(number: int, text: str) -> _Item:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(number, f"is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise _wrong(number, "is not a JSON object")
    if unknown := sorted(record.keys() - {"id", "text", "tokens"}):
        raise _wrong(number, f"has an unknown field {unknown[0]!r}")
    if ("tokens" in record) == ("text" in record):
        raise _wrong(number, "has both tokens and text, or neither")
    key = record.get("id")
    if isinstance(key, bool) or not isinstance(key, (str, int, type(None))):
        raise _wrong(number, "has an unusable id", "a text or an integer")
    content = record.get("text", record.get("tokens"))
    if not isinstance(content, str if "text" in record else list):
        raise _wrong(number, "its text is not a text" if "text" in record else "its tokens are not a list")
    return _Item(number, None if key is None else str(key), content)


class _Tokens:
    """Tokens of items; those of texts by the model's tokenizer, each text by itself, as it stands.
    model: None is the default one where there are texts; other tokens may be of any model."""

    def __init__(self, model: str | None) -> None:
        self.model = model
        self._tokenizer: Any | None = None

    def each(self, batch: Sequence[_Item]) -> list[Any]:
        texts = [item.content for item in batch if isinstance(item.content, str)]
        made = iter(self._encoded(texts, batch))
        return [next(made) if isinstance(item.content, str) else item.content for item in batch]

    def _encoded(self, texts: list[str], batch: Sequence[_Item]) -> list[list[int]]:
        if not texts:
            return []
        if self._tokenizer is None:
            self.model = self.model or DEFAULT_MODEL
            self._tokenizer = open_tokenizer("model", self.model)
        try:
            return encode_all(self._tokenizer, texts)
        except Exception:  # for a text that is not Unicode, tokenizers say nothing that helps
            raise _unusable(batch) from None


def _unusable(batch: Sequence[_Item]) -> InvalidRequestError:
    """Of a batch that a tokenizer refuses: the line with a lone surrogate, which JSON can hold."""
    for item in batch:
        if isinstance(item.content, str):
            try:
                item.content.encode()
            except UnicodeEncodeError:
                return _wrong(item.number, "holds a lone surrogate", "valid Unicode text")
    return _wrong(batch[0].number, "or one of the lines after it can't be tokenized", "texts")
