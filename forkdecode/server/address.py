"""Where a server listens, and whether others than this machine can reach it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from forkdecode.checks import shown
from forkdecode.errors import InvalidRequestError, invalid

DEFAULT_LISTEN = "127.0.0.1:50051"
_ALLOWED = "host:port such as 127.0.0.1:50051 or [::1]:50051, port 0 for a free one, or unix:/path"


@dataclass(frozen=True, slots=True)
class Address:
    """host and port of TCP, or path of a unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_local(self) -> bool:
        """Whether nobody outside this machine can reach it. A name other than localhost may be anything."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(listen: str) -> Address:
    """Raises InvalidRequestError for what is no address."""
    if listen.startswith("unix:"):
        path = listen.removeprefix("unix:")
        if path.startswith("//"):  # unix:///absolute/path is how URLs write it
            path = path[2:]
        if not path or "\0" in path:
            raise invalid("listen", f"{shown(listen)} is no address", _ALLOWED)
        return Address(path=path)
    try:
        parts = urlsplit(f"//{listen}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or port is None or "@" in listen or parts.netloc != listen:
        raise invalid("listen", f"{shown(listen)} is no address", _ALLOWED)
    return Address(host, port)


def check_exposure(address: Address, *, encrypted: bool, authenticated: bool, forced: bool) -> None:
    """Raises InvalidRequestError for an address that others can reach, unless the connection is
    encrypted and callers are known, or the operator insists."""
    if address.is_local or forced or (encrypted and authenticated):
        return
    missing = [
        text
        for there, text in (
            (encrypted, "TLS (--tls-cert, --tls-key)"),
            (authenticated, "callers that are known (--tokens or --tls-client-ca)"),
        )
        if not there
    ]
    raise InvalidRequestError(
        f"listen: {address} can be reached from other machines; that needs {' and '.join(missing)}, "
        "or --insecure-public",
        field="listen",
        limit="loopback or unix: addresses",
    )


def check_unused(address: Address) -> None:
    """Raises OSError for a unix socket at which somebody listens: gRPC would take its place without a
    word. One that a dead server left behind may be taken."""
    if not address.path:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address.path)
        except TimeoutError:  # its queue is full
            pass
        except OSError:
            return
    raise OSError(f"listen: {address} can't be had: a server listens there")


def bind_problem(address: Address) -> str | None:
    """Why the system won't give an address, in its own words, which gRPC keeps to itself; None if it will."""
    try:
        if address.path:
            _try_path(address.path)
        else:
            _try_port(address.host, address.port)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _try_path(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(path)
        with contextlib.suppress(OSError):
            os.unlink(path)


def _try_port(host: str, port: int) -> None:
    for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
