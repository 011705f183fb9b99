"""Whether certificates and keys can be used, before gRPC is given them."""

from __future__ import annotations

import os
import ssl
import tempfile

from forkdecode.errors import invalid


def check_certificates(field: str, content: object) -> None:
    """content: PEM, or None for none. Raises InvalidRequestError."""
    if not isinstance(content, bytes):
        return
    try:
        _context().load_verify_locations(cadata=content.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise invalid(field, "holds no certificate that can be read", "a PEM file") from error


def check_pair(cert: object, key: object) -> None:
    """A client's own certificate and its key, as PEM, or None for none. Raises InvalidRequestError."""
    if not isinstance(cert, bytes) or not isinstance(key, bytes):
        return
    check_certificates("cert", cert)
    with tempfile.TemporaryDirectory(prefix="forkdecode-") as folder:  # for its owner alone; ssl takes files
        paths = [os.path.join(folder, name) for name in ("cert", "key")]
        for path, content in zip(paths, (cert, key), strict=True):
            with open(path, "wb") as file:
                file.write(content)
        _load(*paths)


def _load(cert: str, key: str) -> None:
    try:
        # With an empty password: for that of an encrypted key OpenSSL would ask the terminal.
        _context().load_cert_chain(cert, key, password="")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise invalid("key", "is another key than cert has", "the certificate's") from error
        problem = "holds no private key that can be read without a password"
        raise invalid("key", problem, "an unencrypted PEM file") from error


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")  # how strong a key must be is for the server to say
    return context
