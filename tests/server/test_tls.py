"""TLS and mutual TLS, with certificates made for the test."""

from __future__ import annotations

import asyncio
import codecs
import datetime
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from forkdecode import InvalidRequestError, Tls
from forkdecode.engine.log import json_logger
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.server.app import Server
from forkdecode.server.settings import ServerSettings
from forkdecode.server.tls import TlsFiles, tls_files
from tests.server.calls import refused
from tests.server.puppet import Puppet
from tests.server.servers import LOOPBACK, Log, Running, running_server

KINDS = ("CERTIFICATE", "PRIVATE KEY")


@dataclass(frozen=True)
class Files:
    ca: trustme.CA
    cert: Path
    key: Path
    root: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    pair = ca.issue_cert("127.0.0.1", "localhost")
    cert, key, root = folder / "cert.pem", folder / "key.pem", folder / "ca.pem"
    cert.write_bytes(b"".join(pem.bytes() for pem in pair.cert_chain_pems))
    pair.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(root)
    return Files(ca, cert, key, root)


def model_name(server: Running, credentials: grpc.ChannelCredentials | None) -> str:
    channel = (
        grpc.insecure_channel(server.address)
        if credentials is None
        else grpc.secure_channel(server.address, credentials)
    )
    with channel:
        return DecodeServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=20).name


def client(files: Files, signer: trustme.CA | None = None) -> grpc.ChannelCredentials:
    """Credentials of a client that trusts the server; with a certificate if there is a signer."""
    if signer is None:
        return grpc.ssl_channel_credentials(files.root.read_bytes())
    pair = signer.issue_cert("client@example.org")
    chain = b"".join(pem.bytes() for pem in pair.cert_chain_pems)
    return grpc.ssl_channel_credentials(files.root.read_bytes(), pair.private_key_pem.bytes(), chain)


def test_tls(files: Files) -> None:
    with running_server(Puppet().backend(), tls=TlsFiles(files.cert, files.key)) as server:
        assert model_name(server, client(files)) == "puppet"
        code, _ = refused(lambda: model_name(server, None))
        assert code is grpc.StatusCode.UNAVAILABLE


def test_mutual_tls(files: Files) -> None:
    with running_server(Puppet().backend(), tls=TlsFiles(files.cert, files.key, files.root)) as server:
        assert model_name(server, client(files, files.ca)) == "puppet"
        assert server.lines("request", 1)[0]["caller"] == "client@example.org"
        for stranger in (client(files), client(files, trustme.CA())):
            code, _ = refused(lambda stranger=stranger: model_name(server, stranger))
            assert code is grpc.StatusCode.UNAVAILABLE


def test_a_public_address_needs_it(files: Files) -> None:
    with (
        pytest.raises(InvalidRequestError, match="other machines"),
        running_server(Puppet().backend(), listen="0.0.0.0:0"),
    ):
        pass
    mutual = TlsFiles(files.cert, files.key, files.root)
    with running_server(Puppet().backend(), listen="0.0.0.0:0", tls=mutual) as server:
        assert server.address.startswith("0.0.0.0:")


def test_files_are_checked_before_they_are_used(files: Files, tmp_path: Path) -> None:
    assert tls_files(None, None, None) is None
    for pair in ((files.cert, None, None), (None, files.key, None), (None, None, files.root)):
        with pytest.raises(InvalidRequestError):
            tls_files(*pair)
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    garbage, other, locked = tmp_path / "garbage.pem", tmp_path / "other.pem", tmp_path / "locked.pem"
    garbage.write_text("".join(f"-----BEGIN {k}-----\nx\n-----END {k}-----\n" for k in KINDS))
    files.ca.issue_cert("localhost").private_key_pem.write_to_path(other)
    private = load_pem_private_key(files.key.read_bytes(), None)
    secret = BestAvailableEncryption(b"secret")
    locked.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret))
    for cert, key, ca, field in (
        (garbage, files.key, None, "tls_cert"),
        (files.cert, garbage, None, "tls_key"),
        (files.cert, files.key, garbage, "tls_client_ca"),
        (files.cert, other, None, "tls_key"),
        (files.cert, locked, None, "tls_key"),
        (empty, files.key, None, "tls_cert"),
        (files.cert, empty, None, "tls_key"),
        (files.cert, files.key, empty, "tls_client_ca"),
        (tmp_path / "none", files.key, None, "tls_cert"),
        (files.key, files.cert, None, "tls_key"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            TlsFiles(cert, key, ca).credentials()
        assert caught.value.field == field


BRAINPOOL = ec.generate_private_key(ec.BrainpoolP256R1())
P256 = ec.generate_private_key(ec.SECP256R1())


def self_signed(key: ec.EllipticCurvePrivateKey, days: int = 1) -> tuple[bytes, bytes]:
    """A certificate that ends in so many days, and its key."""
    name, now = x509.Name([]), datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(now - datetime.timedelta(9)).not_valid_after(now + datetime.timedelta(days))
    cert = made.sign(key, hashes.SHA256())
    return cert.public_bytes(Encoding.PEM), key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def bound(log: Log, files: TlsFiles) -> None:
    """Takes a port with them, and gives it back."""

    async def work() -> None:
        server = Server(ServerSettings(LOOPBACK, tls=files), json_logger(log))
        server.bind()
        await server.stop()

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["brainpool", "TRUSTED CERTIFICATE"])
def test_what_grpc_cannot_use_is_no_fault_of_the_address(files: Files, tmp_path: Path, kind: str) -> None:
    cert, key = self_signed(BRAINPOOL if kind == "brainpool" else P256)
    odd = TlsFiles(tmp_path / "odd.pem", tmp_path / "odd.key", files.root)
    odd.cert.write_bytes(cert if kind == "brainpool" else cert.replace(b" CERTIFICATE", f" {kind}".encode()))
    odd.key.write_bytes(key)
    with pytest.raises(InvalidRequestError, match=r"tls_cert: gRPC can't use .*odd.pem") as caught:
        bound(Log(), odd)
    assert caught.value.field == "tls_cert"
    # There is nothing else left to be at fault.
    assert TlsFiles(files.cert, files.key, files.root).refused().field == "tls_client_ca"


def test_a_byte_order_mark_is_left_out(files: Files, tmp_path: Path) -> None:
    marked = {}
    for name, path in (("cert", files.cert), ("key", files.key), ("client_ca", files.root)):
        marked[name] = tmp_path / path.name
        marked[name].write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    log = Log()
    bound(log, TlsFiles(**marked))
    assert log.lines("certificate") == []
    assert Tls(ca=marked["client_ca"]).ca == files.root.read_bytes()


def test_an_expired_certificate_is_warned_of(tmp_path: Path) -> None:
    cert, key = self_signed(P256, days=-1)
    (tmp_path / "old.pem").write_bytes(cert)
    (tmp_path / "old.key").write_bytes(key)
    log = Log()
    bound(log, TlsFiles(tmp_path / "old.pem", tmp_path / "old.key"))
    [line] = log.lines("certificate")
    assert (line["level"], line["problem"]) == ("warning", "certificate has expired")
    assert line["file"].endswith("old.pem")
