"""A decoder's layers on the CPU, noted down pass by pass and then run by one compiled call.

Each pass is what forkdecode_kernels' function for it does, bit for bit, and writes into memory that is given.
"""

from __future__ import annotations

import torch

from forkdecode_kernels.attention import AttentionPlan
from forkdecode_kernels.cpu.attention import CpuAttentionPlan
from forkdecode_kernels.cpu.decode_rows import RowsPlan
from forkdecode_kernels.cpu.layer_calls import gate_call, norm_call, rotate_call, widen_call
from forkdecode_kernels.cpu.operands import Operands
from forkdecode_kernels.cpu.products import Panels, product_call
from forkdecode_kernels.cpu.row_work import rows_call
from forkdecode_kernels.cpu.segment_work import segments_call
from forkdecode_kernels.cpu.segments import SegmentsPlan
from forkdecode_kernels.cpu.tape import Tape
from forkdecode_kernels.cpu.team import Call


def tapes(plan: AttentionPlan) -> bool:
    """Whether attention by this plan can be noted down: by a CPU's compiled kernels alone."""
    return isinstance(plan, CpuAttentionPlan) and not plan.decode and not plan.tiles


class LayerTape:
    """All tensors are contiguous, on the CPU, of T rows each; no two of a pass share memory. Activations and
    K/V are float32, or all bfloat16."""

    def __init__(self) -> None:
        self._tape = Tape()
        self._scratch: dict[int, torch.Tensor] = {}
        self._wide: dict[torch.Size, torch.Tensor] = {}
        self.names: list[str] = []
        """What each pass is."""

    def product(self, name: str, x: torch.Tensor, panels: Panels, out: torch.Tensor) -> None:
        """See forkdecode_kernels.products.product."""
        if _half(x):
            x = self._widened(x)
        self._note(name, product_call(x, panels, out))

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
        self._note("norm", norm_call(hidden, delta, weight, eps, delta_weight, out))

    def gate(self, gate_up: torch.Tensor, activation: str, out: torch.Tensor) -> None:
        """See forkdecode_kernels.gated."""
        self._note("gate", gate_call(gate_up, activation, out))

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
        self._note("rotate", rotate_call(qkv, kv, turns, slots, head_weights, eps, query))

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
        if not isinstance(plan, CpuAttentionPlan) or not tapes(plan):
            raise ValueError("plan is not for a CPU's compiled kernels; see `tapes`")
        operands = Operands(query, kv, out, scale, softcap or 0.0, None)
        if plan.rows is not None:
            scratch = self._scratch_of(plan.rows, operands)
            self._note("attention", rows_call(plan.rows, operands, scratch))
        if plan.segments is not None:
            scratch = self._scratch_of(plan.segments, operands)
            self._note("attention of a prompt", segments_call(plan.segments, operands, scratch))

    def run(self) -> None:
        """All passes, in order."""
        self._tape.run()

    def run_pass(self, index: int) -> None:
        """One of them; those before it must have run."""
        self._tape.run(index, index + 1)

    def _note(self, name: str, call: Call) -> None:
        work, arguments, threads = call
        self._tape.note(work, arguments, threads > 1)
        self.names.append(name)

    def _widened(self, x: torch.Tensor) -> torch.Tensor:
        """x as float32, which a product reads, in memory that the next of equal shape takes again."""
        if x.shape not in self._wide:
            self._wide[x.shape] = torch.empty(x.shape, dtype=torch.float32)
        wide = self._wide[x.shape]
        self._note("widen", widen_call(x, wide))
        return wide

    def _scratch_of(self, plan: RowsPlan | SegmentsPlan, operands: Operands) -> torch.Tensor:
        """The same for all layers of a plan."""
        if id(plan) not in self._scratch:
            self._scratch[id(plan)] = operands.scratch(plan.query_rows)
        return self._scratch[id(plan)]


def _half(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bfloat16
