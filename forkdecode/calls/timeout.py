"""How long a caller wants to wait."""

from __future__ import annotations

from forkdecode.checks import check_float

_FOREVER = 1e9
"""Seconds: 31 years. gRPC counts deadlines in nanoseconds since 1970, and those of centuries overflow."""


def check_timeout(name: str, value: object) -> float | None:
    """Seconds above 0, or None for as long as it takes. Raises InvalidRequestError."""
    if value is None:
        return None
    seconds = check_float(name, value, 0.0, open_low=True)
    return None if seconds > _FOREVER else seconds
