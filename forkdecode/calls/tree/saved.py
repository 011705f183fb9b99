"""Files of trees: a picture, and the nodes as records to make them again of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forkdecode.calls.picture import Picture
from forkdecode.calls.tree.view import TreeView
from forkdecode.checks import shown
from forkdecode.errors import ForkdecodeError, UnavailableError, invalid
from forkdecode.text_file import UTF8
from forkdecode.tree_types import NodePath

SAVED = "what Tree.save wrote, or exported nodes as JSON (a list, or one a line)"


@contextmanager
def while_open(view: TreeView) -> Iterator[None]:
    """What is asked of a tree meanwhile need not be had of one that has ended, whatever it ended with."""
    try:
        yield
    except UnavailableError:
        return
    except ForkdecodeError:
        if view.error is None:
            raise


def write_saved(path: str | os.PathLike[str], picture: Picture, paths: Sequence[NodePath]) -> None:
    """Of a node whose parent is among `paths` its own tokens alone are written. Raises OSError."""
    there = {one.node for one in paths}
    records = [one.to_json() for one in paths]
    for one, record in zip(paths, records, strict=True):
        if one.parent in there:
            record["own_ids"] = record.pop("token_ids")[one.start :]
    plain = {**picture.to_json(), "paths": records}
    Path(path).write_text(json.dumps(plain, allow_nan=False) + "\n", "ascii")


def read_saved(path: str | os.PathLike[str]) -> list[NodePath]:
    """The nodes of a file, parents first. Raises InvalidRequestError and OSError."""
    plain = read_json(path)
    if isinstance(plain, Mapping) and "format" in plain:
        plain = plain.get("paths")
    items = plain if isinstance(plain, list) else [] if plain is None else [plain]
    if not items:
        problem = f"{os.fspath(path)!r} holds no nodes: it was saved after the tree had ended"
        raise invalid("path", problem, SAVED)
    made: dict[int, NodePath] = {}
    for item in items:
        one = NodePath.of_json(_whole(item, made))
        made[one.node] = one
    return list(made.values())


def read_json(path: str | os.PathLike[str], field: str = "path") -> Any:
    """One value, or a list of one a line. Raises InvalidRequestError for `field`, and OSError."""
    try:
        text = Path(path).read_text(UTF8)
    except UnicodeDecodeError:
        raise invalid(field, f"{os.fspath(path)!r} is no text", SAVED) from None
    try:
        return json.loads(text)
    except ValueError as whole:
        try:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise invalid(field, f"is no JSON ({whole})", SAVED) from None
    except RecursionError:
        raise invalid(field, "is nested too deeply", SAVED) from None


def _whole(item: Any, made: Mapping[int, NodePath]) -> Any:
    """The record with all tokens of its path."""
    if not isinstance(item, Mapping) or "own_ids" not in item:
        return item
    parent, own = made.get(item.get("parent", -1)), item["own_ids"]
    if parent is None or not isinstance(own, list):
        raise invalid("path", f"{shown(item)} comes before its parent", SAVED)
    rest = {name: value for name, value in item.items() if name != "own_ids"}
    return {**rest, "token_ids": [*parent.token_ids, *own]}
