"""torch's loops over all rows of a step, made such that a row's bits don't depend on the rows beside it.

torch cuts an elementwise operation of n numbers into min(threads, n / 32,768) chunks, wherever they then
end, and computes the last few of each, which fill no vector, by another exponential
(ATen/native/cpu/Loops.h). And a product by a weight that is no linear layer's, as routers of experts and
some families' experts have, is MKL's, whose bits depend on the number of rows. The lean decoder has none of
either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from forkdecode.model.packing import ROW_QUANTUM, PackedLinear, can_pack

VECTOR = 64
"""A multiple of the numbers of any two vector registers."""
EXACT_POWERS = (1, 2, 3)
_Function = Callable[..., Any]


class RowsAlone(TorchFunctionMode):
    """While it is entered, what of torch's functions would not leave rows alone on a CPU does so."""

    def __init__(self) -> None:
        super().__init__()
        self._packed: dict[torch.nn.Parameter, PackedLinear] = {}

    def __torch_function__(
        self, function: _Function, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if function in PIECES and not (function in _POWERS and args[1:] and args[1] in EXACT_POWERS):
            return whole_vectors(function, PIECES[function], *args, **named)
        if function is torch.nn.functional.linear:
            return self._linear(*args, **named)
        if function in _PRODUCTS and not named and _by_weight(*args):
            return by_sixteens(function, *args)
        return function(*args, **named)

    def _linear(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Packs a parameter the first time. Nothing is kept of weights that are made anew each time, as one
        expert's of all is."""
        if not weight.numel():
            return torch.nn.functional.linear(input, weight, bias)
        if not isinstance(weight, torch.nn.Parameter) or not can_pack(weight.dtype):
            return by_sixteens(torch.nn.functional.linear, input, weight, bias)
        if weight not in self._packed:
            self._packed[weight] = PackedLinear(weight, bias)
        found: torch.Tensor = self._packed[weight](input)
        return found


def as_torch_has_it() -> AbstractContextManager[object]:
    """Within, torch's functions are its own, also while RowsAlone is entered: for what leaves rows alone by
    itself."""
    return torch._C.DisableTorchFunction()


def by_sixteens(function: _Function, x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A product of x [..., rows, in], always of 16 rows at once: of one shape, one order of sums. Three
    dimensions are as many products where the second factor has three as well, and else more rows. Contiguous,
    as a product is: its caller may take a view."""
    if x.ndim != 2 and rest[0].ndim != 3:
        found = by_sixteens(function, x.reshape(-1, x.shape[-1]), *rest)
        return found.view(*x.shape[:-1], found.shape[-1])
    rows = x.shape[-2]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % ROW_QUANTUM)) if rows else x
    pieces = [function(part.contiguous(), *rest) for part in torch.split(padded, ROW_QUANTUM, dim=-2)]
    return torch.cat(pieces, dim=-2)[..., :rows, :].contiguous()


def _by_weight(x: torch.Tensor, weight: Any) -> bool:
    """Whether x's rows are multiplied by a matrix, or as many matrices: a rotary table's angles are single
    products, and have no sum."""
    if not isinstance(weight, torch.Tensor) or x.ndim < 2 or x.shape[-1] == 1 or not x.numel():
        return False
    return weight.ndim == 2 or (weight.ndim == x.ndim == 3 and len(weight) == len(x))


def whole_vectors(function: _Function, piece: int, *args: Any, **named: Any) -> torch.Tensor:
    """An elementwise function of its first argument, of any shape, with each number in a whole vector of a
    piece of so many numbers, which one thread computes; what else it takes is no tensor."""
    x: torch.Tensor = named.pop("input") if "input" in named else args[0]
    rest, in_place = args[1:], named.pop("inplace", False)
    numbers = x.numel()
    if x.is_contiguous() and numbers % VECTOR == 0 and numbers <= piece:
        found = function(x, *rest, **named)
    else:
        flat = torch.nn.functional.pad(x.reshape(-1), (0, -numbers % VECTOR))
        pieces = [function(part, *rest, **named) for part in torch.split(flat, piece)]
        found = torch.cat(pieces)[:numbers].view(x.shape)
    return x.copy_(found) if in_place else found


def _pieces() -> dict[_Function, int]:
    """By function the numbers that torch gives to one thread at least: fewer where MKL's vector functions
    compute it."""
    mkl = ("exp", "exp2", "expm1", "erf", "erfc", "tanh", "log", "log1p", "log2", "sin", "cos", "pow")
    own = ("silu", "gelu", "mish", "elu", "softplus", "logsigmoid")
    found: dict[_Function, int] = {getattr(torch.nn.functional, name): 32_768 for name in own}
    for size, names in ((2_048, mkl), (32_768, ("sigmoid",))):
        for name in names:
            found[getattr(torch, name)] = found[getattr(torch.Tensor, name)] = size
    return found | {torch.Tensor.__pow__: 2_048}


PIECES = _pieces()
_PRODUCTS: frozenset[_Function] = frozenset(
    getattr(owner, name) for owner in (torch, torch.Tensor) for name in ("matmul", "mm", "bmm")
) | {torch.Tensor.__matmul__}
_POWERS: frozenset[_Function] = frozenset({torch.pow, torch.Tensor.pow, torch.Tensor.__pow__})
