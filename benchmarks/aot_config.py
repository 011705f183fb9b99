"""One compilation of a kernel, as the ahead-of-time compiler wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

POINTERS = {
    "part_ptr": "*fp32",
    "lse_ptr": "*fp32",
    "max_ptr": "*fp32",
    "sum_ptr": "*fp32",
    "base_ptr": "*fp32",
    "score_ptr": "*fp32",
    "shift_ptr": "*fp64",
    "list_ptr": "*i64",
    "slots_ptr": "*i64",
    "pairs_ptr": "*i64",
    "lineage_ptr": "*i64",
    "position_ptr": "*i64",
    "tokens_ptr": "*i64",
    "uniform_ptr": "*fp64",
    "temperature_ptr": "*fp64",
    "top_p_ptr": "*fp64",
    "min_p_ptr": "*fp64",
    "top_k_ptr": "*i64",
    "rows_ptr": "*i32",
    "best_ptr": "*fp32",
    "scale_ptr": "*fp32",
    "log_norm_ptr": "*fp64",
    "logsumexp_ptr": "*fp64",
    "mass_ptr": "*fp64",
    "token_ptr": "*i64",
    "logprob_ptr": "*fp32",
}
"""Element types where they are not int32."""
SCALARS = {
    "scale": "fp32",
    "softcap": "fp32",
    "stride_kvh": "i64",
    "stride_block": "i64",
    "stride_half": "i64",
    "stride_head": "i64",
    "stride_source_slice": "i64",
    "stride_target_slice": "i64",
}
UNALIGNED = ("stride_table",)
"""Strides that no load depends on the alignment of. All others are multiples of 16 elements."""


@dataclass(frozen=True)
class Config:
    """One compilation. types: of parameters that differ from the tables above. aligned: sizes that
    are multiples of 16 in the shapes that matter; unaligned: strides that are not, besides those above.
    wide: whether it moves bulk data. registers: of a thread at most, where NVIDIA's compiler is told."""

    name: str
    kernel: Any
    constants: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    types: dict[str, str] = field(default_factory=dict)
    aligned: tuple[str, ...] = ()
    unaligned: tuple[str, ...] = ()
    wide: bool = False
    registers: int | None = None

    def signature(self) -> dict[str, str]:
        """The type of every parameter, as Triton writes it."""
        return {name: self._type(name) for name in self.kernel.arg_names}

    def _type(self, name: str) -> str:
        if name in self.constants:
            return "constexpr"
        default = POINTERS.get(name, "*i32") if name.endswith("_ptr") else SCALARS.get(name, "i32")
        return self.types.get(name, default)

    def hinted(self) -> list[str]:
        """Parameters known to be multiples of 16."""
        return [
            name
            for name in self.kernel.arg_names
            if name not in self.constants
            and name not in (*UNALIGNED, *self.unaligned)
            and (name.endswith("_ptr") or name.startswith("stride_") or name in self.aligned)
        ]
