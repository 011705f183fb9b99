"""What compiled kernels take, as the page of documentation. Needs no Triton."""

from __future__ import annotations

from typing import Any

from benchmarks.report_layout import table

PAGE = """\
# GPU kernels, compiled ahead of time

What each kernel takes in every configuration that ships, read from the machine code:

    python benchmarks/aot_report.py --json report.json --markdown docs/kernels.md

writes this page. It needs no GPU, and fails where a kernel spills vector registers, needs more shared
memory than the target gives a program, or moves bulk data in pieces of less than 16 bytes. Registers are
those of a thread (on gfx942 accumulators included); occupancy is resident warps of those that the GPU can
hold. Attention: 32 query heads, 8 kv heads, blocks of 16 tokens; "small" and "large" are the two tile
shapes (16 rows, and 64 or as the registers allow). Selection: bf16 logits, vocabulary up to 262,144. No
speed can be read off here: `benchmarks/gpu_check.py` measures it where there is a GPU.

Compiled by Triton {triton}.

## The extremes

Over all targets and configurations of a kernel:

{extremes}

## All configurations

Registers / KB of shared memory / occupancy.

{cells}
"""


def page(version: str, records: list[dict[str, Any]]) -> str:
    """The page of documentation. version: Triton's."""
    return PAGE.format(triton=version, extremes=extremes(records), cells=markdown(records))


def extremes(records: list[dict[str, Any]]) -> str:
    """A row a kernel: the span of each figure, and how many configurations it has in how many targets."""
    families: dict[str, list[dict[str, Any]]] = {}
    for r in records:
        families.setdefault(r["kernel"].split()[0], []).append(r)
    head = ["kernel", "compiled for", "registers", "KB of shared memory", "occupancy", "faults"]
    rows = []
    for name, own in families.items():
        registers, shared, occupancy = ([r[k] for r in own] for k in ("registers", "shared", "occupancy"))
        spans = [f"{min(registers)} to {max(registers)}"]
        spans += [f"{min(shared) / 1024:.0f} to {max(shared) / 1024:.0f}"]
        spans += [f"{min(occupancy):.0%} to {max(occupancy):.0%}"]
        found = str(sum(bool(r["faults"]) for r in own) or "none")
        rows.append([name, str(len(own)), *spans, found])
    return table(head, rows)


def markdown(records: list[dict[str, Any]]) -> str:
    """A row a configuration, a column a target: registers / KB of shared memory / occupancy."""
    targets = list(dict.fromkeys(r["target"] for r in records))
    cells: dict[str, dict[str, str]] = {}
    for r in records:
        cell = f"{r['registers']} / {r['shared'] / 1024:.0f} / {r['occupancy']:.0%}"
        # Tile shapes differ between vendors: the row is the kernel, the shape is in the JSON.
        row = cells.setdefault(" ".join(w for w in r["kernel"].split() if "x" not in w[1:]), {})
        row[r["target"]] = cell + "".join(f" **{fault}**" for fault in r["faults"])
    return table(
        ["kernel", *targets], ([name, *(row.get(t, "") for t in targets)] for name, row in cells.items())
    )
