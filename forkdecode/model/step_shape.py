"""What of a step attention is planned from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forkdecode.step import DecodeRows, QuerySegment


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step plan attention depends on. num_tokens: padding included."""

    segments: Sequence[QuerySegment]
    decodes: Sequence[DecodeRows]
    num_tokens: int
