"""What of a plan is kept in a journal, in plain values that can be compared part by part.

Left out is what never changes over a request's life (its prompt, its processors), and what is large
and follows from the rest: of the generated tokens a checksum is kept, of a stop string's mask its states.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from forkdecode.step import BlockMoves, FinishMask, SelectionRequest, StepPlan

Image: TypeAlias = Mapping[str, Any]
_INT32 = 2**31 - 1


def image_of(plan: StepPlan) -> dict[str, Any]:
    """Block operations first: of a plan that went wrong, they are what to look at first."""
    return {
        "step": plan.step,
        "copies": _moves(plan.copies),
        "swap_out": _moves(plan.swap_out),
        "swap_in": _moves(plan.swap_in),
        "zero_blocks": plan.zero_blocks,
        "decodes": [
            {"token_start": d.token_start, "context_len": d.context_len, "trunk": d.trunk, "tails": d.tails}
            for d in plan.decodes
        ],
        "segments": [
            {
                "token_start": s.token_start,
                "token_count": s.token_count,
                "position": s.position,
                "blocks": s.blocks,
            }
            for s in plan.segments
        ],
        "slots": _narrow(plan.slots),
        "positions": _narrow(plan.positions),
        "token_ids": _narrow(plan.token_ids),
        "logits_index": _narrow(plan.logits_index),
        "selections": [_selection(s) for s in plan.selections],
    }


def _moves(moves: BlockMoves) -> dict[str, Any]:
    return {"source": moves.source, "target": moves.target}


def _narrow(array: NDArray[np.int64]) -> NDArray[Any]:
    """int32 where the numbers allow it: half the bytes."""
    return array.astype(np.int32) if array.max(initial=0) <= _INT32 else array


def _selection(request: SelectionRequest) -> dict[str, Any]:
    generated = request.generated
    return {
        "group_id": request.group_id,
        "logits_start": request.logits_start,
        "rows": request.rows,
        "num_generated": request.num_generated,
        "num_logprobs": request.num_logprobs,
        "generated_crc": None if generated is None else zlib.crc32(np.ascontiguousarray(generated).data),
        "kind": type(request.choice).__name__,
        "choice": {
            f.name: _part(getattr(request.choice, f.name)) for f in dataclasses.fields(request.choice)
        },
    }


def _part(value: Any) -> Any:
    return value.state if isinstance(value, FinishMask) else value


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two images part. field: such as "decodes[2].tails[0, 3]". path: the same as keys."""

    path: tuple[str | int, ...]
    field: str
    expected: Any
    got: Any


def first_difference(expected: Any, got: Any, path: tuple[str | int, ...] = ()) -> Difference | None:
    """The first part of `expected`, in its order, that `got` does not have."""
    return next(_differences(expected, got, path), None)


def _differences(expected: Any, got: Any, path: tuple[str | int, ...]) -> Iterator[Difference]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for key in [*expected, *(k for k in got if k not in expected)]:
            yield from _differences(expected.get(key), got.get(key), (*path, key))
    elif isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        if len(expected) != len(got):
            yield Difference(path, f"{_name(path)}.length", len(expected), len(got))
        for i, pair in enumerate(zip(expected, got, strict=False)):
            yield from _differences(*pair, (*path, i))
    elif isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        yield from _array_differences(expected, got, path)
    elif type(expected) is not type(got) or expected != got:
        yield Difference(path, _name(path), expected, got)


def _array_differences(
    expected: NDArray[Any], got: NDArray[Any], path: tuple[str | int, ...]
) -> Iterator[Difference]:
    if expected.shape != got.shape and max(expected.ndim, got.ndim) > 1:
        yield Difference(path, f"{_name(path)}.shape", expected.shape, got.shape)
        return
    if len(expected) != len(got):  # the first entry that differs, None where there is none
        pairs = enumerate(zip_longest(expected.tolist(), got.tolist()))
        at, (one, other) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        yield Difference((*path, at), f"{_name(path)}[{at}]", one, other)
        return
    # NaN equals NaN here: bits are what must repeat.
    unequal = (expected != got) & ~((expected != expected) & (got != got))  # noqa: PLR0124
    where = np.argwhere(unequal)
    if len(where):
        where_first = tuple(where[0].tolist())
        name = f"{_name(path)}[{', '.join(map(str, where_first))}]"
        pair = expected[where_first].item(), got[where_first].item()
        yield Difference((*path, *where_first), name, *pair)


def _name(path: tuple[str | int, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "plan"
