"""What a picture shows, as plain records that JSON holds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from forkdecode.errors import invalid

FORMAT = "forkdecode tree picture 1"
_ALLOWED = "what Tree.save wrote"


@dataclass(frozen=True, slots=True)
class PictureNode:
    """parent: a place in Picture.nodes before its own. kind: "prompt", "given" or "generated". tokens: of
    its own. born, ended, gone: steps at which it came, stopped growing and was pruned, None for not yet.
    logprob: of its own tokens. shared, computed: tokens of the path before it that its decode found in KV
    and that it computed; the first of the siblings of one command computes for all. pieces, grown: its
    text token by token and the step at which each came, where that is known. item: the key of the catalogue's
    item that it completes."""

    name: str
    parent: int | None
    kind: str
    text: str
    tokens: int
    born: int = 0
    ended: int | None = None
    gone: int | None = None
    reason: str | None = None
    score: float | None = None
    logprob: float | None = None
    shared: int | None = None
    computed: int | None = None
    pieces: tuple[str, ...] = ()
    grown: tuple[int, ...] = ()
    item: str | None = None


@dataclass(frozen=True, slots=True)
class Blocks:
    """KV blocks over time, as changes. refs: (step, block, reference count). tables: (step, place of a
    node, the blocks that hold its own tokens)."""

    size: int
    refs: tuple[tuple[int, int, int], ...] = ()
    tables: tuple[tuple[int, int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """steps: a label for each place of the slider. notes: said below the title. block_size: where no blocks
    were recorded, tokens of a block: those are shown that the nodes' paths need, as they share them."""

    title: str
    steps: tuple[str, ...]
    nodes: tuple[PictureNode, ...]
    notes: str = ""
    blocks: Blocks | None = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        for place, node in enumerate(self.nodes):
            if node.parent is not None and not 0 <= node.parent < place:
                raise invalid("nodes", f"node {place} comes before its parent {node.parent}", "parents first")
            if len(node.pieces) != len(node.grown):
                raise invalid("grown", f"has {len(node.grown)} steps", "one for each of the pieces")
        if self.block_size is not None and self.block_size < 1:
            raise invalid("block_size", f"is {self.block_size}", "at least 1, or None")

    def to_json(self) -> dict[str, Any]:
        """What json.dumps takes; numbers that JSON lacks are left out."""
        plain = {"format": FORMAT, **asdict(self)}
        for node in plain["nodes"]:
            for name in ("score", "logprob"):
                if node[name] is not None and not math.isfinite(node[name]):
                    node[name] = None
        return plain

    @staticmethod
    def of_json(plain: Any) -> Picture:
        """From what to_json returned. Raises InvalidRequestError."""
        if not isinstance(plain, Mapping) or plain.get("format") != FORMAT:
            raise invalid("file", "is no picture of a tree", _ALLOWED)
        try:
            blocks, block_size = plain["blocks"], plain.get("block_size")
            return Picture(
                title=_text(plain["title"]),
                steps=tuple(map(_text, plain["steps"])),
                nodes=tuple(map(_node, plain["nodes"])),
                notes=_text(plain["notes"]),
                blocks=None if blocks is None else _blocks(blocks),
                block_size=None if block_size is None else _int(block_size),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise invalid("file", f"is no picture of a tree ({error})", _ALLOWED) from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not a text")
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not a whole number")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r:.40} is not a number")
    return float(value)


def _node(plain: Mapping[str, Any]) -> PictureNode:
    """Every field by the kind that it is declared with."""
    read = {"str": _text, "int": _int, "float": _float}
    values: dict[str, Any] = {}
    for f in fields(PictureNode):
        value: Any = plain.get(f.name) if f.name == "item" else plain[f.name]  # older files lack items
        kind = str(f.type).removesuffix(" | None")
        if kind.startswith("tuple"):
            values[f.name] = tuple(map(_text if "str" in kind else _int, value))
        else:
            values[f.name] = None if value is None and kind != f.type else read[kind](value)
    return PictureNode(**values)


def _blocks(plain: Mapping[str, Any]) -> Blocks:
    refs = tuple((_int(step), _int(block), _int(count)) for step, block, count in plain["refs"])
    tables = tuple((_int(s), _int(node), tuple(map(_int, ids))) for s, node, ids in plain["tables"])
    return Blocks(_int(plain["size"]), refs, tables)
