"""Log lines that cannot be written are lost, and nothing else is."""

from __future__ import annotations

import io
import json
import logging

import pytest
import structlog

from forkdecode.engine.log import configure_logs, json_logger


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
    try:
        configure_logs(stream)
        structlog.get_logger("forkdecode.engine").info("lost")
        logging.getLogger("somebody").warning("lost too")
        stream.error = None
        structlog.get_logger("forkdecode.engine").info("kept")
        logging.getLogger("somebody").warning("kept too")
        logging.getLogger("somebody").info("not of ours")
        logging.getLogger("forkdecode.model.default_model").info("fetching")
    finally:
        structlog.reset_defaults()
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == [
        "kept",
        "kept too",
        "fetching",
    ]
    assert capsys.readouterr().err == ""
