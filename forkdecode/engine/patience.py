"""How long an engine process may take."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.checks import check_float, keep

SLICES = 10
"""Into which the wait for a word is cut. One that lasts far too long, because this process stood still
itself, counts as no more than one."""
LONGEST = 1e6
"""Seconds that may be asked for."""
_LONGEST_BEAT = 1.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine process may take before it is ended, and started again as after a crash.

    silence: seconds without a word. A thread of its own says one a second whatever a step takes, from the
    moment that the process has begun to load. step: seconds that one step may take, and that the process
    may take to say its first word; long enough for the largest step there is and for what is compiled in
    the first.
    """

    silence: float = 30.0
    step: float = 600.0

    def __post_init__(self) -> None:
        keep(self, "silence", check_float, 0.0, LONGEST, open_low=True)
        keep(self, "step", check_float, 0.0, LONGEST, open_low=True)

    @property
    def beat(self) -> float:
        """Seconds between two words of a process that is well."""
        return min(_LONGEST_BEAT, self.silence / SLICES)
