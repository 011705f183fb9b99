"""A journal for the tests of replays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.replays import busy


@pytest.fixture(params=["recompute", "swap"])
def journal(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    engine = busy(tmp_path / "j", request.param)
    stats = engine.stats()
    assert min(stats.copies, stats.preemptions, stats.failed_groups - 1) > 0
    assert (stats.swapped_blocks > 0) == (request.param == "swap")
    engine.close()
    return tmp_path / "j"
