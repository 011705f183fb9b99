"""What forkdecode logs in somebody's process goes where that process wants its logs, and nowhere else."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

import forkdecode
from forkdecode.logs import get_logger

PACKAGE = Path(forkdecode.__file__).parent


def test_an_event_has_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("forkdecode.model.graphed").warning("graphs_off", reason="100% differ", name="a")
    (record,) = caplog.records
    assert record.getMessage() == "graphs_off reason='100% differ' name='a'"
    assert (record.name, record.levelname) == ("forkdecode.model.graphed", "WARNING")
    assert vars(record)["event"] == "graphs_off"
    assert vars(record)["fields"] == {"reason": "100% differ", "name": "a"}
    assert record.filename == Path(__file__).name  # who logged, not the logger


def test_an_exception_comes_with_it(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("wrong")
    except ValueError as error:
        raised = error
        get_logger("forkdecode.engine").exception("engine_died")
    get_logger("forkdecode.engine").error("event_broken", request_id="a", exc_info=raised)
    assert caplog.messages == ["engine_died", "event_broken request_id='a'"]
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [raised, raised]


def test_nothing_is_printed_where_nothing_is_configured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output is the program's; warnings are on standard error, as any library's."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler(sys.stderr))
    log = get_logger("forkdecode.engine.jobs")
    log.info("captured", steps=1)
    log.warning("graphs_dropped", steps=16)
    assert capsys.readouterr() == ("", "graphs_dropped steps=16\n")


def test_a_level_of_the_users_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "forkdecode"):
        get_logger("forkdecode.engine.jobs").warning("graphs_dropped")
    assert caplog.records == []


def test_all_modules_log_by_it() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "structlog.get_logger" not in text, path
        assert "getLogger(__name__)" not in text, path
