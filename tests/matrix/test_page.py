from __future__ import annotations

from tests.matrix.table import PAGE, in_page, render


def test_the_page_shows_the_matrix_as_it_is() -> None:
    """Else: python -m tests.matrix --write"""
    assert in_page(PAGE.read_text()) == render()
