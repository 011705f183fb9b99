"""Where a client connects, as whom, and how patient it is."""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypedDict

import grpc

from forkdecode.calls.many import ManyKeywords
from forkdecode.calls.timeout import check_timeout
from forkdecode.checks import check_int, check_unicode, keep, shown
from forkdecode.client.address import DEFAULT_ADDRESS, check_address
from forkdecode.client.forks import GRPC
from forkdecode.client.pem import check_certificates, check_pair
from forkdecode.errors import invalid

Pem: TypeAlias = str | os.PathLike[str] | bytes
"""A file's path, or what such a file holds."""
MAX_RETRIES = 1000
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Retries are made here, where it is known whether a token has come.
    ("grpc.enable_retries", 0),
    # A connection that failed is tried again about as soon as a call is.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # What one attempt may take, in spite of its name: TLS over a long way to a busy server needs seconds.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # While a call runs, a server that vanished without a word, or stands still, is noticed within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),  # until its machine has taken the question
    ("grpc.http2.ping_timeout_ms", 20_000),  # and it has answered
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True)
class Tls:
    """How to verify the server, and how to authenticate to it. PEM files, or their bytes.

    ca: certificates that the server's is checked against; None: those that come with gRPC. cert and key: this
    client's own, for servers that require one (mutual TLS).
    """

    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("ca", "cert", "key"):
            keep(self, name, _pem)
        if (self.cert is None) != (self.key is None):
            missing = "key" if self.key is None else "cert"
            raise invalid(missing, "is missing", "cert and key together, or neither")
        # Of what is wrong within them gRPC says no more than that the server can't be reached.
        check_certificates("ca", self.ca)
        check_pair(self.cert, self.key)

    def credentials(self) -> grpc.ChannelCredentials:
        """As gRPC wants them."""
        return grpc.ssl_channel_credentials(self.ca, self.key, self.cert)  # type: ignore[arg-type]


def _pem(name: str, value: object) -> bytes | None:
    allowed = "the path of a PEM file, or its bytes"
    if value is None:
        return None
    content = value
    if isinstance(value, (str, os.PathLike)):
        try:
            content = Path(value).read_bytes()
        except (OSError, ValueError) as error:
            raise invalid(name, f"cannot be read: {error}", allowed) from error
    if not isinstance(content, bytes) or b"-----BEGIN" not in content:
        raise invalid(name, "holds no PEM" if isinstance(content, bytes) else "is no file", allowed)
    return content.removeprefix(codecs.BOM_UTF8)  # gRPC would take the first line for none


class ClientKeywords(TypedDict, total=False):
    """Client's keyword arguments apart from the address; see there."""

    token: str | None
    tls: Tls | None
    timeout: float | None
    retries: int


class RemoteManyKeywords(ManyKeywords, total=False):
    """Additional keyword arguments of Client.decode_many."""

    timeout: float | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of Client and AsyncClient; see there."""

    address: str = DEFAULT_ADDRESS
    token: str | None = field(default=None, repr=False)
    tls: Tls | None = None
    timeout: float | None = None
    retries: int = 5

    def __post_init__(self) -> None:
        keep(self, "address", check_address)
        if self.token is not None:
            text = check_unicode("token", self.token, "a text of visible ASCII")
            if not text or not (text.isascii() and text.isprintable()) or " " in text:
                raise invalid("token", "cannot be sent", "a text of visible ASCII")
        if self.tls is not None and not isinstance(self.tls, Tls):
            raise invalid("tls", f"{shown(self.tls)} is none", "Tls(ca=..., cert=..., key=...) or None")
        keep(self, "timeout", check_timeout)
        keep(self, "retries", check_int, 0, MAX_RETRIES)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel(self) -> grpc.aio.Channel:
        """A connection for the event loop that runs here; made when first used, and again when lost.

        Raises UnavailableError in a process forked from one that had made one.
        """
        GRPC.check()
        if self.tls is None:
            return grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        return grpc.aio.secure_channel(self.address, self.tls.credentials(), options=_OPTIONS)
