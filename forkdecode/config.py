"""Configuration of an engine. Sizes are in bytes unless the name says otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypedDict, get_args

from forkdecode.checks import check_bool, check_float, check_int, is_integer, keep, shown
from forkdecode.errors import invalid

DType: TypeAlias = Literal["auto", "float32", "bfloat16", "float16"]
"""Of weights and KV cache; "auto" is a model's own, or what its device multiplies natively."""
Preemption: TypeAlias = Literal["auto", "recompute", "swap"]
Weights: TypeAlias = Literal["native", "int8"]
Compile: TypeAlias = Literal["none", "layers"]
DEFAULT_MODEL = "smollm2-135m-instruct"
MAX_BYTES = 2**63 - 1
MAX_THREADS = 4096
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4,
          "ki": 1024, "mi": 1024**2, "gi": 1024**3, "ti": 1024**4}  # fmt: skip


def parse_bytes(field: str, size: str | int) -> int:
    """'2GiB', '500MB', '1g' or a number of bytes -> bytes. Raises InvalidRequestError."""
    if is_integer(size):
        return check_int(field, size, 0, MAX_BYTES)
    text = size if isinstance(size, str) else ""
    match = re.fullmatch(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise invalid(field, f"{shown(size)} is not a size", "sizes such as 2GiB, 500MB or 1073741824")
    return check_int(field, int(float(match[1]) * _UNITS[(match[2] or "").lower()]), 0, MAX_BYTES)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything that is fixed when an engine starts.

    kv_memory: size of the block pool ('2GiB'), or a fraction of the memory now free ('40%'); "auto" is 25% of
    a host's free memory, which other programs use too, and 90% of what the model and a step leave of a GPU's.
    num_blocks: the size of the pool in blocks, instead of kv_memory. swap_memory: host memory for preempted
    groups. watermark: fraction of the pool that admission leaves free. max_step_tokens: the token budget of a
    step; max_prefill_tokens limits the prefill part of a step that also decodes. weights: "native" computes
    matrix products in the model's dtype; "int8" uses 8-bit weights and inputs for them, which is faster on
    CPUs with VNNI but not exactly the same model. compile: "layers" runs the model's layers through
    torch.compile, only on a GPU; the first steps wait for it. batch_invariant: attention on a GPU splits
    contexts at fixed lengths, so that it does not depend on what else is in the step, instead of where that
    keeps the GPU busiest; on a CPU it never depends on that.
    """

    block_size: int = 16
    kv_memory: str | int = "auto"
    num_blocks: int | None = None
    swap_memory: str | int = "1GiB"
    max_step_tokens: int = 2048
    max_prefill_tokens: int = 512
    max_waiting: int = 100_000
    watermark: float = 0.01
    prefix_cache: bool = True
    preemption: Preemption = "auto"
    overcommit: bool = False
    aging_steps: int = 256
    weights: Weights = "native"
    compile: Compile = "none"
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        keep(self, "block_size", check_int, 1, 128)
        if self.block_size & (self.block_size - 1):
            raise invalid("block_size", f"{self.block_size} is not a power of two", "1, 2, 4 ... 128")
        if self.memory_share() is None:
            parse_bytes("kv_memory", self.kv_memory)
        if self.num_blocks is not None:
            keep(self, "num_blocks", check_int, 1, 2**31 - 2)
        parse_bytes("swap_memory", self.swap_memory)
        keep(self, "max_step_tokens", check_int, 1)
        keep(self, "max_prefill_tokens", check_int, 1)
        keep(self, "max_waiting", check_int, 1)
        keep(self, "watermark", check_float, 0.0, 0.5)
        keep(self, "prefix_cache", check_bool)
        if not isinstance(self.preemption, str) or self.preemption not in get_args(Preemption):
            raise invalid("preemption", f"{shown(self.preemption)} is unknown", "'auto', 'recompute', 'swap'")
        keep(self, "overcommit", check_bool)
        keep(self, "aging_steps", check_int, 1)
        if not isinstance(self.weights, str) or self.weights not in get_args(Weights):
            raise invalid("weights", f"{shown(self.weights)} is unknown", "'native', 'int8'")
        if not isinstance(self.compile, str) or self.compile not in get_args(Compile):
            raise invalid("compile", f"{shown(self.compile)} is unknown", "'none', 'layers'")
        keep(self, "batch_invariant", check_bool)

    def memory_share(self, *, on_gpu: bool = False) -> float | None:
        """kv_memory as a share of the host's or a GPU's free memory (0 to 1), or None when it is a size."""
        text = self.kv_memory.strip() if isinstance(self.kv_memory, str) else ""
        if text == "auto":
            return 0.9 if on_gpu else 0.25
        if not text.endswith("%"):
            return None
        try:
            share = float(text[:-1])
        except ValueError:
            share = -1.0
        if not 0 < share <= 95:
            raise invalid("kv_memory", f"{shown(text)} is not a share", "0% (exclusive) to 95%, or a size")
        return share / 100


class EngineKeywords(TypedDict, total=False):
    """EngineConfig's fields, as keywords of what makes an engine."""

    block_size: int
    kv_memory: str | int
    num_blocks: int | None
    swap_memory: str | int
    max_step_tokens: int
    max_prefill_tokens: int
    max_waiting: int
    watermark: float
    prefix_cache: bool
    preemption: Preemption
    overcommit: bool
    aging_steps: int
    weights: Weights
    compile: Compile
    batch_invariant: bool
