"""Calls of compiled work, noted down first and then made one after another by one compiled call.

What Python does between two products is slow out of proportion: each product streams its weight through the
caches, so that the interpreter and its objects have to be fetched again. Here it is done before the first.
"""

from __future__ import annotations

import array
from functools import cache
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from forkdecode_kernels.cpu.team import Work, compile_work, team_address
from forkdecode_kernels.cpu.words import address_of, words_at

_I64, _I32 = ir.IntType(64), ir.IntType(32)


class Tape:
    """Each call gets the address of its own arguments, as cpu/team.py has them; see `run` there."""

    def __init__(self) -> None:
        self._words: list[int] = []
        self._starts: list[int] = []
        self._team = torch.get_num_threads()

    def __len__(self) -> int:
        """How many calls there are."""
        return len(self._starts)

    def note(self, work: Work, arguments: tuple[int, ...], parallel: bool) -> None:
        """A call on one thread, or on all that torch has."""
        # Before a call's arguments: the work's address, threads, and how many arguments follow.
        self._starts.append(len(self._words))
        self._words += (work.address, self._team if parallel else 1, len(arguments))
        self._words += arguments

    def run(self, first: int = 0, last: int | None = None) -> None:
        """The calls first .. last, all if they are not given. What their arguments point to must be there."""
        last = len(self) if last is None else last
        start = self._starts[first] if first < len(self) else len(self._words)
        stop = self._starts[last] if last < len(self) else len(self._words)
        words = array.array("q", [team_address(), last - first, *self._words[start:stop]])
        _driver().call(words.buffer_info()[0])


def _call(typing_context: Any, start: Any, work: Any, arguments: Any, threads: Any) -> Any:
    def emit(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> ir.Constant:
        start, work, arguments, threads = args
        address = ir.IntType(8).as_pointer()
        data, body = builder.inttoptr(arguments, address), ir.FunctionType(ir.VoidType(), [address])
        call = builder.inttoptr(work, body.as_pointer())
        region = ir.FunctionType(ir.VoidType(), [address, address, _I32, _I32])
        with builder.if_else(builder.icmp_signed(">", threads, _I64(1))) as (several, one):
            with several:
                entry = builder.inttoptr(start, region.as_pointer())
                count = builder.trunc(threads, _I32)
                builder.call(entry, [builder.inttoptr(work, address), data, count, _I32(0)])
            with one:
                builder.call(call, [data])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), emit


_make_call: Any = intrinsic(_call)


def _drive(words: Any) -> None:
    at = address_of(words) + 16
    start, calls = words[0], words[1]
    for _ in range(calls):
        head = words_at(at)
        arguments = at + 24
        _make_call(start, head[0], arguments, head[1])
        at = arguments + 8 * head[2]


@cache
def _driver() -> Work:
    return compile_work(_drive)
