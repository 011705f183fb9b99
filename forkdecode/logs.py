"""Loggers whose lines are an event's name and what it is about, on the standard library's logging: whoever
imports forkdecode decides what is shown and where. Nothing goes to standard output by itself."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

_OF_LOGGING = ("exc_info", "stack_info", "stacklevel")


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Keywords are fields of the event. A record's message reads `event field=value ...`; the record has them
    apart, too: `event`, and `fields` by name."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        own = {name: kwargs[name] for name in _OF_LOGGING if name in kwargs}
        fields = {name: value for name, value in kwargs.items() if name not in own}
        message = " ".join([str(msg), *(f"{name}={value!r}" for name, value in fields.items())])
        return message, {**own, "extra": {"event": msg, "fields": fields}}


def get_logger(name: str) -> EventLogger:
    """A module's logger, by its name: `log.warning("kernels_off", reason=...)`."""
    return EventLogger(logging.getLogger(name))


def fields_of(record: logging.LogRecord) -> tuple[str, dict[str, Any]] | None:
    """The event of a record that such a logger made, and its fields; None for others' records."""
    event, fields = getattr(record, "event", None), getattr(record, "fields", None)
    return (event, fields) if isinstance(event, str) and isinstance(fields, dict) else None
