"""Logs: one JSON object a line."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog
import structlog.tracebacks

from forkdecode.logs import fields_of

_TRACEBACKS = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
"""Local variables hold prompts."""


class _Lossy:
    """A stream for lines that may be lost. Where none can be written, for the disk is full or who read them
    has gone, whatever they tell of goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def json_logger(stream: TextIO) -> Any:
    """A structlog logger that writes to `stream`: time, level, event and what it is about. What cannot be
    written is lost, and no error."""
    return structlog.wrap_logger(
        structlog.WriteLogger(_lossy(stream)), processors=_processors(), wrapper_class=structlog.BoundLogger
    )


def configure_logs(stream: TextIO) -> None:
    """The same for whatever logs by itself in this process: our own modules, and the libraries."""
    handler = logging.StreamHandler(_lossy(stream))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_told_by, *_processors()[:-1]],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    handler.addFilter(_is_no_callers)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    # What takes long, which catalogue took whose place.
    logging.getLogger("forkdecode").setLevel(logging.INFO)


def _is_no_callers(record: logging.LogRecord) -> bool:
    """gRPC logs metadata that a caller has damaged, twice and with a traceback. What of it counts is refused
    by name."""
    return record.name != "grpc._cython.cygrpc" or not str(record.msg).startswith("Invalid encoding on")


def _told_by(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line of ours has its event and fields apart; a library's has its logger's name besides."""
    if (ours := fields_of(event["_record"])) is None:
        return structlog.stdlib.add_logger_name(logger, method, event)
    name, fields = ours
    return {**fields, **event, "event": name}


def _lossy(stream: TextIO) -> TextIO:
    return cast(TextIO, _Lossy(stream))  # all that loggers ask of one


def _processors() -> list[Any]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.ExceptionRenderer(_TRACEBACKS),
        structlog.processors.JSONRenderer(),
    ]
