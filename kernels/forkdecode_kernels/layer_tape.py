"""A decoder's layers on the CPU, noted down pass by pass and then run by one compiled call.

Each pass is what forkdecode_kernels' function for it does, bit for bit, and writes into memory that is given.
"""

from __future__ import annotations

import torch

from forkdecode_kernels.attention import AttentionPlan
from forkdecode_kernels.cpu import layer_work as work
from forkdecode_kernels.cpu.attention import CpuAttentionPlan
from forkdecode_kernels.cpu.heads import THREAD_WORK
from forkdecode_kernels.cpu.layers import THREAD_ELEMENTS
from forkdecode_kernels.cpu.pieces import PIECE, padded
from forkdecode_kernels.cpu.products import Panels, product_call
from forkdecode_kernels.cpu.tape import Tape
from forkdecode_kernels.cpu.team import Work
from forkdecode_kernels.cpu.words import bits


def tapes(plan: AttentionPlan) -> bool:
    """Whether attention by this plan can be noted down: decode rows alone, on the compiled kernels."""
    return isinstance(plan, CpuAttentionPlan) and plan.rows is not None and plan.segments is None


class LayerTape:
    """All tensors are contiguous, on the CPU, of T rows each; no two of a pass share memory. Activations and
    K/V are float32, or all bfloat16."""

    def __init__(self) -> None:
        self._tape = Tape()
        self._threads = torch.get_num_threads()
        self._scratch: dict[int, tuple[torch.Tensor, int]] = {}
        self._wide: dict[torch.Size, torch.Tensor] = {}
        self.names: list[str] = []
        """What each pass is."""

    def product(self, name: str, x: torch.Tensor, panels: Panels, out: torch.Tensor) -> None:
        """See forkdecode_kernels.products.product."""
        if _half(x):
            x = self._widened("widen", x)
        made, arguments, threads = product_call(x, panels, out)
        self._note(name, made, arguments, threads > 1)

    def norm(
        self,
        hidden: torch.Tensor,
        delta: torch.Tensor | None,
        weight: torch.Tensor,
        eps: float,
        delta_weight: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """See forkdecode_kernels.norm.add_rms_norm."""
        rows, width = hidden.shape
        changes = (0, 0) if delta is None else (delta.data_ptr(), rows)
        own = (0, 0) if delta_weight is None else (delta_weight.data_ptr(), width)
        arguments = (
            0, rows, width, hidden.data_ptr(), *changes, weight.data_ptr(), *own, bits(eps), out.data_ptr(),
        )  # fmt: skip
        self._note("norm", work.norm_work(_half(hidden)), arguments, self._worth(hidden))

    def gate(self, gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> None:
        """See forkdecode_kernels.gated."""
        arguments = (0, len(out), out.shape[1], gate_up.data_ptr(), out.data_ptr())
        self._note("gate", work.gate_work(activation, _half(gate_up)), arguments, self._worth(gate_up))

    def rotate(
        self,
        qkv: torch.Tensor,
        kv: torch.Tensor,
        turns: tuple[torch.Tensor, torch.Tensor],
        slots: torch.Tensor,
        head_weights: tuple[torch.Tensor | None, torch.Tensor | None],
        eps: float,
        query: torch.Tensor,
    ) -> None:
        """See forkdecode_kernels.rotary.split_rotate_write; head_weights, turns: both or neither of two."""
        (heads, rows, dim), (cos, sin) = query.shape, turns
        own = [0 if each is None else each.data_ptr() for each in head_weights]
        arguments = (
            0, rows, heads, kv.shape[1], kv.shape[2] * kv.shape[3], dim, cos.shape[1], qkv.data_ptr(),
            kv.data_ptr(), cos.data_ptr(), sin.data_ptr(), slots.data_ptr(), len(slots), *own,
            dim if own[0] else 0, bits(eps), query.data_ptr(),
        )  # fmt: skip
        self._note("rotate", work.rotate_work(_half(qkv)), arguments, self._worth(qkv))

    def attend(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        plan: AttentionPlan,
        scale: float,
        softcap: float | None,
        out: torch.Tensor,
    ) -> None:
        """See forkdecode_kernels.attention.attention. What the plan omits of out [T, H * D] stays. Raises
        ValueError where tapes(plan) is not."""
        if not isinstance(plan, CpuAttentionPlan) or plan.rows is None or plan.segments is not None:
            raise ValueError("plan is not of decode rows alone; see `tapes`")
        (heads, tokens, dim), rows = query.shape, plan.rows
        kv_heads, blocks, size = kv.shape[1:4]
        columns, wide, group_size = padded(rows.query_rows), padded(dim), heads // kv_heads
        copied = max(size, PIECE)
        numbers = work.scratch_numbers(columns, wide, group_size, copied)
        parallel = rows.products * kv_heads * dim * 2 >= 2 * THREAD_WORK
        scratch, each = self._scratch_of(plan, numbers)
        arguments = (
            0, 0, query.data_ptr(), kv.data_ptr(), out.data_ptr(), rows.groups.ctypes.data, len(rows.groups),
            rows.blocks.ctypes.data, len(rows.blocks), heads, tokens, kv_heads, blocks, size, dim,
            bits(scale), bits(softcap or 0.0), scratch.data_ptr(), each, columns, wide, group_size, copied,
        )  # fmt: skip
        self._note("attention", work.attend_work(_half(query)), arguments, parallel)

    def run(self) -> None:
        """All passes, in order."""
        self._tape.run()

    def run_pass(self, index: int) -> None:
        """One of them; those before it must have run."""
        self._tape.run(index, index + 1)

    def _note(self, name: str, made: Work, arguments: tuple[int, ...], parallel: bool) -> None:
        self._tape.note(made, arguments, parallel and self._threads > 1)
        self.names.append(name)

    def _widened(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """What a product reads for x: float32 numbers, in memory that the next of equal shape writes again."""
        if x.shape not in self._wide:
            self._wide[x.shape] = torch.empty(x.shape, dtype=torch.float32)
        wide = self._wide[x.shape]
        arguments = (0, x.numel(), x.data_ptr(), wide.data_ptr())
        self._note(name, work.widen_work(), arguments, self._worth(x))
        return wide

    def _worth(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() >= 2 * THREAD_ELEMENTS

    def _scratch_of(self, plan: CpuAttentionPlan, numbers: int) -> tuple[torch.Tensor, int]:
        """Zeros, for what pads a row of it is never written; and how many of them a thread has."""
        if id(plan) not in self._scratch:
            zeros = torch.zeros(self._threads * numbers, dtype=torch.float32)
            self._scratch[id(plan)] = zeros, numbers
        return self._scratch[id(plan)]


def _half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bfloat16
