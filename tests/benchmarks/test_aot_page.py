"""The page of compiled kernels: its rows, its extremes, and the committed one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.aot_page import compilers, extremes, markdown, page, shown_elsewhere

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"


def compiled(target: str, kernel: str, registers: int, kilobytes: int, *faults: str) -> dict[str, Any]:
    return {
        "target": target, "kernel": kernel, "registers": registers, "shared": 1024 * kilobytes,
        "occupancy": 16 / registers, "faults": list(faults),
    }  # fmt: skip


RECORDS = [
    compiled("sm_90", "attention small 16x64 bf16", 64, 20),
    compiled("sm_90", "attention large bf16", 128, 40, "spills 8"),
    compiled("gfx942", "attention small 16x32 bf16", 160, 16),
    compiled("gfx942", "draw", 32, 0),
]


def test_a_row_is_a_kernel_and_a_column_a_target() -> None:
    """Tile shapes, which differ between targets, are left out of the names."""
    assert markdown(RECORDS).splitlines() == [
        "| kernel | sm_90 | gfx942 |",
        "|---|---|---|",
        "| attention small bf16 | 64 / 20 / 25% | 160 / 16 / 10% |",
        "| attention large bf16 | 128 / 40 / 12% **spills 8** |  |",
        "| draw |  | 32 / 0 / 50% |",
    ]


def test_extremes_span_all_configurations_of_a_kernel() -> None:
    assert extremes(RECORDS).splitlines()[2:] == [
        "| attention | 3 | 64 to 160 | 16 to 40 | 10% to 25% | 1 |",
        "| draw | 1 | 32 to 32 | 0 to 0 | 50% to 50% | none |",
    ]


def test_a_compiler_is_a_row_with_its_faults() -> None:
    clean = [compiled(target, "draw 8x8", 32, 0) for target in ("sm_80", "sm_90")]
    documents = [{"triton": "3.6.0", "records": RECORDS}, {"triton": "3.9.0", "records": clean}]
    assert compilers(documents).splitlines()[2:] == [
        "| 3.6.0 | 3 | 2 | 4 | 1 |",
        "| 3.9.0 | 1 | 2 | 2 | none |",
    ]
    shown = page(documents)
    assert compilers(documents) in shown
    assert "of Triton 3.6.0" in shown
    assert markdown(RECORDS) in shown
    assert shown_elsewhere(shown) == f"{compilers(documents)}\n\n{extremes(RECORDS)}"


def test_the_committed_page_is_what_the_command_writes() -> None:
    """Every configuration for every target, none of them at fault."""
    text = PAGE.read_text()
    cells = re.compile(r"(\d+) / (\d+) / (\d+)%")
    targets: list[str] = []
    records = []
    for line in text.split("## All configurations")[1].splitlines():
        name, *row = [cell.strip() for cell in line.strip("|").split("|")]
        if name == "kernel":
            targets = row
        if targets and name and name != "kernel" and not name.startswith("---"):
            for target, cell in zip(targets, row, strict=True):
                found = cells.fullmatch(cell)
                assert found, f"{name}, {target}: {cell}"
                registers, kilobytes, share = map(int, found.groups())
                record = compiled(target, name, registers, kilobytes)
                records.append(record | {"occupancy": share / 100})
    assert targets == ["sm_80", "sm_89", "sm_90", "sm_100", "gfx942"]
    assert len(records) > 900
    version = re.search(r"of Triton ([\d.]+)\.\n", text)
    assert version is not None
    document = {"triton": version[1], "records": records}
    before, rest = text.split("\n\nThe figures")
    assert rest == page([document]).split("\n\nThe figures")[1]
    counted = compilers([document]).splitlines()[2]
    rows = [line for line in before.splitlines() if line.startswith("| 3.")]
    assert [row.replace(row.split()[1], version[1]) for row in rows] == [counted] * 2, "both compilers, alike"
