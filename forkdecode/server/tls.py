"""TLS of the server: its certificate, and whose certificates it asks for."""

from __future__ import annotations

import codecs
import contextlib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import grpc

from forkdecode.errors import InvalidRequestError, invalid

_ROUNDS = 4
"""Turns of both sides in which a handshake is over."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. client_ca: every client must show a certificate that it has signed (mutual TLS)."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises InvalidRequestError for a file that can't be read or used, and for a key that is not
        the certificate's."""
        pair = (_pem("tls_key", self.key, b"PRIVATE KEY"), _pem("tls_cert", self.cert, b"CERTIFICATE"))
        ca = None if self.client_ca is None else _pem("tls_client_ca", self.client_ca, b"CERTIFICATE")
        # Of what is wrong within them gRPC says no more than that the port can't be had.
        _check_certificates("tls_cert", self.cert)
        _check_key(self.cert, self.key)
        if self.client_ca is not None:
            _check_certificates("tls_client_ca", self.client_ca)
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)

    def refused(self) -> InvalidRequestError:
        """Which file it is that gRPC does not take, where it takes the address."""
        alone = TlsFiles(self.cert, self.key)
        if self.client_ca is not None and _is_taken(alone.credentials()):
            problem = f"gRPC can't use {self.client_ca}"
            return invalid("tls_client_ca", problem, "PEM files of BEGIN CERTIFICATE blocks alone")
        problem = f"gRPC can't use {self.cert} with its key {self.key}"
        return invalid("tls_cert", problem, "BEGIN CERTIFICATE blocks, and a usual RSA or ECDSA key")

    def doubt(self) -> str | None:
        """Why clients may not trust the certificate, whoever has signed it: it has expired, or its key is
        weak."""
        server, client = _context(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.load_cert_chain(self.cert, self.key, password="")
        client.check_hostname = False
        client.load_verify_locations(self.cert)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = (client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True))
        try:
            for side in _ROUNDS * sides:
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError as error:
            return error.reason
        return None


def tls_files(cert: Path | None, key: Path | None, client_ca: Path | None) -> TlsFiles | None:
    """None where no TLS is asked for. Raises InvalidRequestError for half of a pair."""
    if cert is None and key is None:
        if client_ca is not None:
            raise InvalidRequestError("tls_client_ca: needs tls_cert and tls_key", field="tls_client_ca")
        return None
    if cert is None or key is None:
        raise InvalidRequestError(
            "tls_cert: certificate and key are given together", field="tls_key" if key is None else "tls_cert"
        )
    return TlsFiles(cert, key, client_ca)


def _check_certificates(field: str, path: Path) -> None:
    try:
        _context().load_verify_locations(path)
    except ssl.SSLError:
        raise invalid(field, f"{path} holds no certificate that can be read", "a PEM file") from None


def _check_key(cert: Path, key: Path) -> None:
    try:
        # With an empty password: for that of an encrypted key OpenSSL would ask the terminal.
        _context().load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise invalid("tls_key", f"{key} is another key than {cert} has", "the certificate's") from None
        problem = f"{key} holds no private key that can be read without a password"
        raise invalid("tls_key", problem, "an unencrypted PEM file") from None


def _is_taken(credentials: grpc.ServerCredentials) -> bool:
    """By a server of gRPC, on a port that is free again after that."""
    try:
        grpc.server(ThreadPoolExecutor(1)).add_secure_port("127.0.0.1:0", credentials)
    except RuntimeError:
        return False
    return True


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("ALL:@SECLEVEL=0")  # how strong a key must be is for gRPC to say
    return context


def _pem(field: str, path: Path, kind: bytes) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise invalid(field, f"{path} can't be read: {error.strerror}", "a readable PEM file") from None
    if b"-----BEGIN" not in content or kind not in content:
        raise invalid(field, f"{path} holds no {kind.decode().lower()}", "a PEM file")
    return content.removeprefix(codecs.BOM_UTF8)  # gRPC would take the first line for none
