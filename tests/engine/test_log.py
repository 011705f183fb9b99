"""Log lines that cannot be written are lost, and nothing else is."""

from __future__ import annotations

import io
import json
import logging

import pytest

from forkdecode.engine.log import configure_logs, json_logger
from forkdecode.logs import get_logger


class Broken(io.StringIO):
    """A log on a full disk, or one that nobody reads any more."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)

    def flush(self) -> None:
        if self.error is not None:
            raise self.error


ERRORS = [OSError(28, "No space left on device"), BrokenPipeError(), ValueError("the file is closed")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_cannot_be_written_is_no_error(error: Exception) -> None:
    stream = Broken(error)
    log = json_logger(stream)
    log.info("lost")
    stream.error = None
    log.info("kept", number=1)
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (line["event"], line["number"]) == ("kept", 1)


def test_the_same_of_what_logs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Broken(ERRORS[0])
    configure_logs(stream)
    get_logger("forkdecode.engine.thread").info("lost")
    logging.getLogger("somebody").warning("lost too")
    stream.error = None
    get_logger("forkdecode.engine.thread").info("kept")
    logging.getLogger("somebody").warning("kept too")
    logging.getLogger("somebody").info("not of ours")
    get_logger("forkdecode.model.default_model").info("fetching")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "kept",
        "kept too",
        "fetching",
    ]
    assert capsys.readouterr().err == ""


def test_a_line_of_ours_reads_as_the_servers_own() -> None:
    """By the fields, their order, the level and the exception."""
    ours, servers = io.StringIO(), io.StringIO()
    configure_logs(ours)
    log, other = get_logger("forkdecode.engine.journal"), json_logger(servers)
    for each in (log, other):
        each.warning("journal_full", file="steps.journal", steps=3)
        each.error("request_broken", request_id="a", exc_info=ValueError("wrong"))
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        log.exception("journal_ended", record="write")
        other.error("journal_ended", record="write", exc_info=True)
    lines, wanted = (
        [json.loads(line) for line in stream.getvalue().splitlines()] for stream in (ours, servers)
    )
    assert [list(line) for line in lines] == [list(line) for line in wanted]
    assert list(lines[0]) == ["file", "steps", "event", "level", "timestamp"]
    for line in (*lines, *wanted):
        del line["timestamp"]
    assert lines == wanted
    assert [line["level"] for line in lines] == ["warning", "error", "error"]


def test_a_librarys_line_names_its_logger() -> None:
    stream = io.StringIO()
    configure_logs(stream)
    logging.getLogger("somebody").warning("%d of 100%% kept", 3)
    line = json.loads(stream.getvalue())
    assert (line["event"], line["logger"], line["level"]) == ("3 of 100% kept", "somebody", "warning")


def test_what_a_caller_has_damaged_is_not_told_of() -> None:
    stream = io.StringIO()
    configure_logs(stream)
    grpcs = logging.getLogger("grpc._cython.cygrpc")
    try:
        b"\xab".decode()
    except UnicodeDecodeError:
        grpcs.exception("Invalid encoding on %s", b"\xab")
    grpcs.error("Unexpected [LookupError] raised by servicer method [/Decode]")
    [line] = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert line["event"].startswith("Unexpected")
