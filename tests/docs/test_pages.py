"""README.md and docs/: what they name is there, and their lines can be read in an editor."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from forkdecode.results import FinishReason

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
LONGEST = 120


def prose(page: Path) -> str:
    """A page without its programs, whose `#` starts a comment and whose brackets are no links."""
    return re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """What a link into the page can name: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_is_too_long(page: Path) -> None:
    """Tables aside, and what benchmarks.report has written."""
    text = re.sub(r"^<!-- table: .*?^<!-- end -->", "", page.read_text(), flags=re.M | re.S)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > LONGEST and not line.startswith("|")] == []


def test_options_page_lists_every_finish_reason() -> None:
    text = (ROOT / "docs" / "options.md").read_text()
    (rows,) = re.findall(r"^`finish_reason` is one of:\n\n((?:\|.*\n)+)", text, re.M)
    assert re.findall(r"^\| `(\w+)`", rows, re.M) == list(get_args(FinishReason))
