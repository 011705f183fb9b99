"""What compiled kernels take, as the page of documentation. Needs no Triton."""

from __future__ import annotations

import re
from typing import Any

from benchmarks.report_layout import table

PAGE = """\
# GPU kernels, compiled ahead of time

The resources that each kernel uses in every configuration that ships, read from the machine code. This page
is written by

    python benchmarks/aot_report.py --json report.json --markdown docs/kernels.md

which needs no GPU. It fails if a kernel spills registers to memory, needs more shared memory than the target
gives a program, or moves bulk data without 16-byte loads, or with some of less than 4 bytes.

- **Registers** are per thread (on gfx942 including accumulators, and the lanes of vector registers in which
  some kernels keep scalar ones). **Occupancy** is the fraction of the GPU's possible warps that are resident.
- **Attention:** 8 kv heads; 4 query heads for each unless a row names another group (G); blocks of 16 tokens
  unless it names another size (S). "small" and "large" are the two tile shapes (16 rows, and 64 or as many as
  the registers allow). A group larger than the small tile uses the large one for both; one larger than that
  is cut into equal shares, one program each, like the 71 of Falcon-7B.
- **paged_decode** reads every row's blocks for that row alone: the baseline that benchmarks compare with. No
  engine calls it.
- **Selection:** a vocabulary of up to 262,144. "odd rows" begin at addresses of unknown alignment, as with a
  vocabulary that is not a multiple of 8.

Speed cannot be read off here: `benchmarks/gpu_check.py` measures it on a machine with a GPU.

## Compilers

To add another version of Triton to this table, run the command under it with `--json other.json`, and then
here with `--also other.json`.

{compilers}

The figures below are of Triton {triton}.

## The extremes

Over all targets and configurations of a kernel:

{extremes}

## All configurations

Registers / KB of shared memory / occupancy.

{cells}
"""


def page(documents: list[dict[str, Any]]) -> str:
    """The page of documentation. documents: triton (the version) and records, of one compiler each; the
    first one's figures are shown, of the others how many are at fault."""
    first = documents[0]
    return PAGE.format(
        triton=first["triton"],
        compilers=compilers(documents),
        extremes=extremes(first["records"]),
        cells=markdown(first["records"]),
    )


def shown_elsewhere(text: str) -> str:
    """Of a page: the tables of compilers and of extremes, which performance.md shows too."""
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return "\n".join(tables[:2]).strip()


def compilers(documents: list[dict[str, Any]]) -> str:
    """A row a compiler: its configurations, for how many targets, and how many of all have faults."""
    rows = []
    for document in documents:
        records = document["records"]
        targets = {r["target"] for r in records}
        faults = sum(bool(r["faults"]) for r in records)
        names = {_shown(r["kernel"]) for r in records}
        rows.append(
            [document["triton"], str(len(names)), str(len(targets)), str(len(records)), str(faults or "none")]
        )
    return table(["Triton", "configurations", "targets", "compiled", "with faults"], rows)


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
        row = cells.setdefault(_shown(r["kernel"]), {})
        row[r["target"]] = cell + "".join(f" **{fault}**" for fault in r["faults"])
    return table(
        ["kernel", *targets], ([name, *(row.get(t, "") for t in targets)] for name, row in cells.items())
    )


def _shown(kernel: str) -> str:
    """Tile shapes differ between vendors: the row is the kernel, the shape is in the JSON."""
    return " ".join(w for w in kernel.split() if not re.fullmatch(r"\d+x\d+", w))
