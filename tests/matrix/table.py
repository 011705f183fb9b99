"""All rows, and the tables that docs/options.md shows of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.matrix import constraint_rows, option_rows, setting_rows, way_rows
from tests.matrix.rows import STRATEGIES, Row

TABLES: dict[str, list[Row]] = {
    "option": [*option_rows.ROWS, *constraint_rows.ROWS],
    "way": way_rows.ROWS,
    "setting": setting_rows.ROWS,
}
ROWS = [row for rows in TABLES.values() for row in rows]
PAGE = Path(__file__).parents[2] / "docs" / "options.md"
BEGIN, END = "<!-- matrix: made by python -m tests.matrix -->", "<!-- end of matrix -->"


def render() -> str:
    """Markdown: one table of all that holds for every strategy, one of what belongs to some."""
    first = [*TABLES["option"], *TABLES["way"]]
    notes = Notes()
    parts = [_table("option", first, notes), _table("setting of its own", TABLES["setting"], notes)]
    return "\n\n".join([*parts, notes.text()])


class Notes:
    """Reasons under the tables, numbered as they come."""

    def __init__(self) -> None:
        self._reasons: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        number = self._reasons.setdefault(reason, len(self._reasons) + 1)
        return f"<sup>{number}</sup>"

    def text(self) -> str:
        return "  \n".join(f"{self.mark(reason)} {reason}." for reason in self._reasons)


def _table(title: str, rows: Sequence[Row], notes: Notes) -> str:
    lines = [f"| {title} | {' | '.join(STRATEGIES)} |", "|---|" + ":-:|" * len(STRATEGIES)]
    for row in rows:
        name = _shown(row.name)
        if row.remote:
            name += notes.mark(f"In process only; a client rejects it: {row.remote.why}")
        lines.append(f"| {name} | {' | '.join(_cell(row, s, notes) for s in STRATEGIES)} |")
    return "\n".join(lines)


def _shown(name: str) -> str:
    """A name from Python as code; ways to use results are plain words."""
    setting, colon, kind = name.partition(": ")
    return f"`{setting}`{colon}{kind}" if setting.isidentifier() and setting != "streamed" else name


def _cell(row: Row, strategy: str, notes: Notes) -> str:
    mark = notes.mark(row.refused[strategy].why) if strategy in row.refused else ""
    return row.cell(strategy) + mark


def in_page(text: str) -> str:
    """What stands between the marks."""
    return text.split(BEGIN, 1)[1].split(END, 1)[0].strip()


def written(text: str) -> str:
    """The page with today's tables."""
    before, rest = text.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{rest.split(END, 1)[1]}"
