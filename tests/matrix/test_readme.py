from __future__ import annotations

from tests.matrix.table import README, in_readme, render


def test_the_readme_shows_the_matrix_as_it_is() -> None:
    """Else: python -m tests.matrix --write"""
    assert in_readme(README.read_text()) == render()
