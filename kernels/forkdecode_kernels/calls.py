"""Operations on a device in three parts, so that many of them share one copy there and one back.

An operation says which arrays of the host it wants, launches its work when they are there, and reads what
that left when it is back. `together` runs any number of them, of any kind, with one copy each way.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from numpy.typing import NDArray

from forkdecode_kernels.transfer import on_its_way, to_device

T = TypeVar("T")
P = ParamSpec("P")
X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Raw:
    """The logits [M, V] that values [m, V] were made of: row i of logits[places[i]], whose sum of
    exponentials has the logarithm logsumexp[i] float64. All on the device."""

    logits: torch.Tensor
    places: torch.Tensor
    logsumexp: torch.Tensor


@dataclass(frozen=True, slots=True)
class Source:
    """What an operation chooses from: values [m, V], and what they were before they were changed; None where
    they are the logits themselves."""

    values: torch.Tensor
    raw: Raw | None = None

    def raw_logprobs(self, rows: torch.Tensor, tokens: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Log-softmax float32, before any change, of tokens after rows of `values`; `own` where nothing has
        changed."""
        if self.raw is None:
            return own
        chosen = self.raw.logits[self.raw.places[rows], tokens].double()
        return (chosen - self.raw.logsumexp[rows]).float()


class Keeping(NamedTuple):
    """The tensors that an operation wants back, and what stays there for those that follow it."""

    told: Sequence[torch.Tensor]
    kept: Any


Steps = Generator[Any, Any, T]
"""Yields arrays, and is sent (Source, the arrays on the device); yields tensors, or Keeping, and is sent them
as arrays; returns what came of it."""


class Call(Generic[T]):
    """An operation under way. arrays: what it wants on the device. kept: what it leaves there."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self.arrays: list[NDArray[Any]] = list(next(steps))
        self.kept: Any = None

    def launch(self, source: Source, sent: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Starts the work, without waiting for it; what it wants back. sent: the arrays."""
        told = self._steps.send((source, sent))
        if isinstance(told, Keeping):
            told, self.kept = told
        return list(told)

    def read(self, told: Sequence[NDArray[Any]]) -> T:
        """What came of it. told: the tensors that launch named."""
        try:
            self._steps.send(told)
        except StopIteration as done:
            found: T = done.value
            return found
        raise RuntimeError("an operation has three parts")


def in_parts(steps: Callable[P, Steps[T]]) -> Callable[P, Call[T]]:
    """Makes a function that gives a Call of a generator function."""

    @wraps(steps)
    def made(*args: P.args, **kwargs: P.kwargs) -> Call[T]:
        return Call(steps(*args, **kwargs))

    return made


def alone(call: Call[T], values: torch.Tensor) -> T:
    """Runs one operation on values [M, V]."""
    return together([(call, Source(values))], values.device)[0]


def together(jobs: Sequence[tuple[Call[T], Source]], device: torch.device) -> list[T]:
    """Runs all, with one copy to the device and one back; more where an operation says so."""
    return begun(jobs, device)()


def begun(jobs: Sequence[tuple[Call[T], Source]], device: torch.device) -> Callable[[], list[T]]:
    """Starts what `together` runs; what waits for it and reads it."""
    sent = taken(to_device([a for call, _ in jobs for a in call.arrays], device))
    launched = [call.launch(source, sent(len(call.arrays))) for call, source in jobs]
    arrived = on_its_way([t for tensors in launched for t in tensors])
    counts = [len(tensors) for tensors in launched]

    def read() -> list[T]:
        told = taken(arrived())
        return [call.read(told(count)) for (call, _), count in zip(jobs, counts, strict=True)]

    return read


def taken(values: Sequence[X]) -> Callable[[int], list[X]]:
    """A function that gives the next n of the values."""
    rest: Iterator[X] = iter(values)
    return lambda n: [next(rest) for _ in range(n)]
