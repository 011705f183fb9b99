"""What one tree session may hold."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.checks import check_float, check_int, keep

MAX_TTL = 1e9
"""Seconds."""
MAX_EXPORTED_TOKENS = 2**19
"""Tokens of the paths that one command may ask for: each record holds its whole path."""
MAX_ASKED_TOKENS = 2**24
"""Tokens of the paths that one command may decode or score, what is scored on each counted: each request
holds its own."""


@dataclass(frozen=True, slots=True)
class TreeLimits:
    """What one session may hold.

    max_nodes: live nodes. max_depth: edges from a root. max_tokens: own tokens of all live nodes, including
    those that may still be generated. max_blocks: KV blocks that its nodes refer to, shared ones counted
    once; None: no limit. Beyond it, idle nodes that are not pinned give up their KV, the least recently used
    first; if that is not enough, a command is refused. idle_ttl: seconds after which an unused node that is
    not pinned gives up its KV; None: never. A node without KV stays valid: its KV is recomputed when needed.
    """

    max_nodes: int = 65_536
    max_depth: int = 4_096
    max_tokens: int = 16_777_216
    max_blocks: int | None = None
    idle_ttl: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_nodes", "max_tokens"):
            keep(self, name, check_int, 1)
        keep(self, "max_depth", check_int, 0)
        if self.max_blocks is not None:
            keep(self, "max_blocks", check_int, 1)
        if self.idle_ttl is not None:
            keep(self, "idle_ttl", check_float, 0.0, MAX_TTL)
