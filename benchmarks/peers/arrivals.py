"""When the tokens of a request come, as who asked for them sees it."""

from __future__ import annotations

import time

MEASURES = ("first_token", "between_tokens", "seconds")
"""Told of a request that is read as it comes; of one that is final when it ends, the last alone."""


class Arrivals:
    """A peer says when it sends the request, everything around it being ready, and when it has tokens of it.

    seconds: of each token, since the request was sent.
    """

    def __init__(self) -> None:
        self._begin = 0.0
        self.seconds: list[float] = []

    def asked(self) -> None:
        """The request goes out now."""
        self._begin = time.perf_counter()

    def arrived(self, tokens: int = 1) -> None:
        """So many more tokens are in the caller's hands, and their text."""
        self.seconds += [time.perf_counter() - self._begin] * tokens
