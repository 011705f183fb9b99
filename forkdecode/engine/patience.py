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
    """How long an engine process may take before it is killed and restarted, as after a crash.

    silence: seconds without a heartbeat. A thread of its own sends one every second from the moment that the
    process begins to load, however long a step takes. step: seconds that one step may take, and that the
    process may take until its first heartbeat; long enough for the largest step and for the compilation in
    the first one.
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
