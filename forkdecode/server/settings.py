"""How a server serves. Neither gRPC nor an engine is imported here: flags are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forkdecode.checks import check_bool, check_float, check_int, keep
from forkdecode.server.address import DEFAULT_LISTEN, Address, check_exposure, parse_address
from forkdecode.server.auth import OPEN, TokenBook
from forkdecode.tree_types import TreeLimits

if TYPE_CHECKING:
    from forkdecode.server.tls import TlsFiles

MIN_REQUEST_BYTES = 1024
"""The lowest limit on the size of a request."""


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """Limits of tree sessions. max_sessions: concurrent sessions. grace: seconds for which a session is kept
    after its connection is lost. idle: seconds after which a session that is unused and generates nothing is
    ended. limits: the most that a session may hold."""

    max_sessions: int = 256
    grace: float = 60.0
    idle: float = 3600.0
    limits: TreeLimits = field(default_factory=TreeLimits)

    def __post_init__(self) -> None:
        keep(self, "max_sessions", check_int, 0)
        keep(self, "grace", check_float, 0.0, 1e9)
        keep(self, "idle", check_float, 0.0, 1e9, open_low=True)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server serves.

    listen: host:port or unix:/path. max_requests: concurrent calls. max_request_bytes: size of one request as
    it is sent. stall_timeout: seconds after which a reader to which nothing more can be sent is disconnected;
    the server sees that a client reads when it opens its flow-control window again, which is after many small
    messages. tokens: callers and their limits. insecure_public: serve an address that others can reach
    without TLS or tokens.
    """

    listen: str = DEFAULT_LISTEN
    max_requests: int = 1024
    max_request_bytes: int = 4 * 2**20
    stall_timeout: float = 600.0
    tls: TlsFiles | None = None
    tokens: TokenBook = OPEN
    insecure_public: bool = False
    log_prompts: bool = False
    trees: TreeSettings = field(default_factory=TreeSettings)

    def __post_init__(self) -> None:
        keep(self, "max_requests", check_int, 1)
        keep(self, "max_request_bytes", check_int, MIN_REQUEST_BYTES)
        keep(self, "stall_timeout", check_float, 0.0, 1e6, open_low=True)
        keep(self, "insecure_public", check_bool)
        keep(self, "log_prompts", check_bool)

    def address(self) -> Address:
        """Where to listen. Raises InvalidRequestError for what is no address, or one too open."""
        address = parse_address(self.listen)
        mutual = self.tls is not None and self.tls.client_ca is not None
        check_exposure(
            address,
            encrypted=self.tls is not None,
            authenticated=self.tokens.needs_token or mutual,
            forced=self.insecure_public,
        )
        return address
