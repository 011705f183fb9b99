"""GPUs that kernels are compiled for, their limits, and what a compiled kernel says of itself."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

from forkdecode_kernels.triton.tiles import Family


@dataclass(frozen=True)
class Target:
    """shared_limit: bytes that one program may have; shared: bytes of a multiprocessor; registers:
    32-bit registers of a multiprocessor (AMD: of each lane of a SIMD); warps: resident at most."""

    name: str
    family: Family
    backend: str
    arch: int | str
    warp_size: int
    shared_limit: int
    shared: int
    registers: int
    warps: int


TARGETS = (
    Target("sm_80", "ampere", "cuda", 80, 32, 166_912, 167_936, 65_536, 64),
    Target("sm_89", "ampere", "cuda", 89, 32, 101_376, 102_400, 65_536, 48),
    Target("sm_90", "cuda", "cuda", 90, 32, 232_448, 233_472, 65_536, 64),
    Target("sm_100", "blackwell", "cuda", 100, 32, 232_448, 233_472, 65_536, 64),
    Target("gfx942", "amd", "hip", "gfx942", 64, 65_536, 65_536, 512, 32),
)


@dataclass(frozen=True)
class Usage:
    """registers a thread; spills: to memory, bytes of stack (NVIDIA), or of scratch and vector ones (AMD);
    scalar_spills: AMD's scalar registers kept in lanes of vector registers; wide: 16-byte loads;
    narrow: loads of less than 4 bytes; occupancy: resident warps of those that the GPU can hold."""

    registers: int
    spills: int
    scalar_spills: int
    shared: int
    wide: int
    narrow: int
    occupancy: float


def usage(compiled: Any, target: Target, num_warps: int) -> Usage:
    """Reads it from the machine code."""
    shared = int(compiled.metadata.shared)
    if target.backend == "cuda":
        (registers, spills), scalar = _cuda_registers(compiled.asm["cubin"]), 0
        loads = re.findall(r"ld\.global\S*|cp\.async\.c[ag]\S* [^;]*;", compiled.asm["ptx"])
        wide = sum(bool(re.search(r"\.v4\.[bfu]32|\.v2\.[bfu]64|, (0x10|16)\b", x)) for x in loads)
        narrow = sum(bool(re.search(r"ld\.global\S*\.[busf](8|16)$", x)) for x in loads)
        resident = _cuda_resident(registers, shared, num_warps, target)
    else:
        text = compiled.asm["amdgcn"]
        registers, vectors, scalar, scratch = (
            int(re.search(rf"\.{field}:\s+(\d+)", text)[1])  # type: ignore[index]
            for field in ("vgpr_count", "vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size")
        )
        spills = vectors + scratch
        wide = len(re.findall(r"(?:global|buffer)_load_(?:dwordx4|b128)", text))
        narrow = len(re.findall(r"(?:global|buffer)_load_(?:[us]byte|[us]short|[iu]8|[iu]16)", text))
        resident = _amd_resident(registers, shared, num_warps, target)
    return Usage(registers, spills, scalar, shared, wide, narrow, resident / target.warps)


def _cuda_registers(cubin: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, text
    return int(found[1]), int(found[2]) + int(found[3])


def _cuda_resident(registers: int, shared: int, num_warps: int, target: Target) -> int:
    """Registers are given to warps by 256; each program costs 1 KB of shared memory beyond its own."""
    by_registers = target.registers // (-(-registers * 32 // 256) * 256) // num_warps
    by_shared = target.shared // (shared + 1024)
    return min(by_registers, by_shared, target.warps // num_warps, 32) * num_warps


def _amd_resident(registers: int, shared: int, num_warps: int, target: Target) -> int:
    """Four SIMDs of at most eight waves; vector registers are given by eight."""
    waves = 4 * min(8, target.registers // (-(-max(registers, 1) // 8) * 8))
    programs = min(waves // num_warps, target.shared // max(shared, 1))
    return programs * num_warps
