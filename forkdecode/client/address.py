"""What a client may be told of where its server is."""

from __future__ import annotations

import re

from forkdecode.checks import check_unicode, shown
from forkdecode.errors import InvalidRequestError, UnavailableError, invalid

DEFAULT_ADDRESS = "127.0.0.1:50051"
MAX_PORT = 65_535
_SCHEMES = frozenset(
    ("dns", "google-c2p", "ipv4", "ipv6", "passthrough", "unix", "unix-abstract", "vsock", "xds")
)
"""What gRPC names servers by, other than host:port."""
_ALLOWED = f"host:port such as {DEFAULT_ADDRESS} or [::1]:50051, unix:/path, or what else gRPC names"
_UNKNOWN_HOST = re.compile("Domain name not found|Name or service not known|Misformatted domain name")
"""What resolvers say of a name that there is not. Those that can't say now say something else."""


def check_address(name: str, value: object) -> str:
    """Raises InvalidRequestError for what gRPC would take for the name of an odd host, and try for long."""
    address = check_unicode(name, value, _ALLOWED)
    if not address:
        raise invalid(name, "is empty", _ALLOWED)
    scheme, is_url, rest = address.partition("://")
    if is_url and scheme not in _SCHEMES:
        hint = f"; for {scheme}://, give tls=Tls() and {shown(rest.rstrip('/'))}" if scheme == "https" else ""
        raise invalid(name, f"{shown(address)} is a URL", _ALLOWED + hint)
    scheme = address.partition(":")[0]
    if scheme.startswith("unix"):
        return address
    port = address.rpartition(":")[2].lstrip("0")
    if port.isdecimal() and (len(port) > 5 or int(port) > MAX_PORT):  # gRPC would take its last 16 bits
        raise invalid(name, f"{shown(address)} has no port", f"host:port, at most {MAX_PORT}")
    if scheme in _SCHEMES:
        return address
    if not re.fullmatch(r"(\[[^\[\]/@\s]+\]|[^\[\]:/@\s]+):[0-9]+", address):
        raise _no_address(name, address)
    return address


def _no_address(name: str, address: str) -> InvalidRequestError:
    has_host = re.fullmatch(r"[^:/@\s]+:?", address)
    return invalid(name, f"{shown(address)} {'has no port' if has_host else 'is no address'}", _ALLOWED)


def unknown_host(address: str, details: str) -> UnavailableError | None:
    """What a failed call means if its server's name is of no host. details: what gRPC says."""
    found = _UNKNOWN_HOST.search(details)
    if found is None:
        return None
    return UnavailableError(
        f"address: the host of {shown(address)} is not known ({found[0]})", field="address", limit=_ALLOWED
    )
