"""What gpu_check measures attention on, and the parts that it consists of. The standard library alone: the
command that leads the parts must live whatever is missing."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Model:
    """One attention layer's shape."""

    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    block_size: int = 16


@dataclass(frozen=True)
class Workload:
    """`groups` groups of `rows` rows behind a trunk of `trunk` tokens, each row with up to `own` tokens.

    fork_every: rows part from each other every so many tokens, so that their tails are a tree. judged:
    whether a ceiling binds it, and not the time that a launch takes.
    """

    name: str
    groups: int
    rows: int
    trunk: int
    own: int
    fork_every: int = 32
    judged: bool = True


FULL = (
    Workload("beam 512 on 2,048", 1, 512, 2048, 128),
    Workload("8 x best-of-32 on 4,096", 8, 32, 4096, 256, 1 << 20),
    Workload("8 x beam 16 on 1,024", 8, 16, 1024, 128),
    Workload("32 x beam 4, ShareGPT-like", 32, 4, 160, 176),
    Workload("64 rows of 2,048, nothing shared", 64, 1, 1920, 128),
    Workload("beam 64 on 256 (fits in L2)", 1, 64, 256, 32, judged=False),
)
REHEARSAL = (
    Workload("beam 4 on 32", 1, 4, 32, 16),
    Workload("2 rows, nothing shared", 2, 1, 48, 16),
)


@dataclass(frozen=True)
class Part:
    """Something that is measured by itself: `function` of `module`, called with a Bench and the arguments.

    seconds: what it may take, compilation included. quiet: what it finds is the host's time, so nothing else
    is to run meanwhile.
    """

    name: str
    module: str
    function: str
    arguments: tuple[int | str, ...] = ()
    seconds: float = 60.0
    quiet: bool = False


def workloads(rehearse: bool) -> tuple[Workload, ...]:
    """Those of attention."""
    return REHEARSAL if rehearse else FULL


def parts(rehearse: bool) -> tuple[Part, ...]:
    """All there is, what says most first; what compiles for long, or is most likely to hang, last. In a
    rehearsal they take as long as the machine does."""
    attention = [
        Part(f"attention, {each.name}", "benchmarks.gpu.attention", "attention", (i,), 60)
        for i, each in enumerate(workloads(rehearse))
    ]
    chosen = "benchmarks.gpu.selection"
    engine = "benchmarks.gpu.engine"
    compiled = Part("engine, compile=layers", engine, "end_to_end", ("layers",), 180, quiet=True)
    found = (
        Part("environment", "benchmarks.gpu.environment", "environment"),
        Part(CEILINGS, "benchmarks.gpu.bench", "ceilings"),
        Part("block moves", "benchmarks.gpu.moves", "block_moves"),
        Part("plan", "benchmarks.gpu.tables", "plans", (), 90, quiet=True),
        *attention,
        Part("selection", chosen, "selection", quiet=True),
        Part("transfers", chosen, "transfers", quiet=True),
        Part("row selection", chosen, "row_selection"),
        Part("draws", chosen, "draws"),
        Part("noise", chosen, "noise"),
        Part("engine", engine, "end_to_end", ("none",), 150, quiet=True),
        Part("engine, exact", engine, "exact", (), 150),
        Part("mixed step", chosen, "mixed_step"),
        *([] if rehearse else [compiled]),
        Part("mixed step against the CPU", chosen, "mixed_step_on_cpu", (), 180),
    )
    return tuple(replace(part, seconds=3600.0) for part in found) if rehearse else found


CEILINGS = "ceilings"
"""The part whose bandwidth and FLOP a second the later ones are measured against."""
