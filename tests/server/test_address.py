"""Where a server may listen."""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import pytest

from forkdecode import InvalidRequestError
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.rpc.v1.decode_pb2_grpc import DecodeServiceStub
from forkdecode.server.address import Address, check_exposure, parse_address
from tests.server.puppet import Puppet
from tests.server.servers import running_server


@pytest.mark.parametrize(
    ("listen", "address", "local"),
    [
        ("127.0.0.1:50051", Address("127.0.0.1", 50051), True),
        ("127.3.2.1:0", Address("127.3.2.1", 0), True),
        ("localhost:1", Address("localhost", 1), True),
        ("[::1]:50051", Address("::1", 50051), True),
        ("0.0.0.0:50051", Address("0.0.0.0", 50051), False),
        ("[::]:50051", Address("::", 50051), False),
        ("192.168.0.7:50051", Address("192.168.0.7", 50051), False),
        ("example.org:50051", Address("example.org", 50051), False),
        ("unix:/tmp/x.sock", Address(path="/tmp/x.sock"), True),
        ("unix:///tmp/x.sock", Address(path="/tmp/x.sock"), True),
    ],
)
def test_addresses(listen: str, address: Address, local: bool) -> None:
    assert parse_address(listen) == address
    assert address.is_local == local
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "listen", ["", "50051", ":50051", "host", "host:", "host:x", "host:70000", "a@b:1", "::1:50051", "unix:"]
)
def test_what_is_no_address(listen: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_address(listen)
    assert caught.value.field == "listen"


@pytest.mark.parametrize(
    ("encrypted", "authenticated", "forced"), list(itertools.product([True, False], repeat=3))
)
def test_others_are_served_with_tls_and_known_callers_alone(
    encrypted: bool, authenticated: bool, forced: bool
) -> None:
    how = {"encrypted": encrypted, "authenticated": authenticated, "forced": forced}
    check_exposure(parse_address("127.0.0.1:0"), **how)
    public = parse_address("0.0.0.0:0")
    if forced or (encrypted and authenticated):
        check_exposure(public, **how)
        return
    with pytest.raises(InvalidRequestError, match="--insecure-public") as caught:
        check_exposure(public, **how)
    assert ("--tls-cert" in str(caught.value)) == (not encrypted)
    assert ("--tokens" in str(caught.value)) == (not authenticated)


def test_a_unix_socket_has_one_server(tmp_path: Path) -> None:
    """gRPC alone would put the second in the first one's place."""
    path = tmp_path / "server.sock"
    with running_server(Puppet().backend(), listen=f"unix:{path}") as first:
        with (
            pytest.raises(OSError, match="can't be had: a server listens there"),
            running_server(Puppet().backend(), listen=f"unix:{path}"),
        ):
            pass
        with first.channel() as channel:
            assert DecodeServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=60).name == "puppet"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with (
        running_server(Puppet().backend(), listen=f"unix:{path}") as next_one,
        next_one.channel() as channel,
    ):
        assert DecodeServiceStub(channel).GetModel(pb.GetModelRequest(), timeout=60).name == "puppet"


def test_why_an_address_cannot_be_had(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for listen, why in (
            (f"127.0.0.1:{taken.getsockname()[1]}", "Address already in use"),
            ("192.0.2.1:0", "Cannot assign requested address"),
            (f"unix:{tmp_path}/none/x.sock", "No such file or directory"),
            (f"unix:{tmp_path}/{'x' * 200}", "too long"),
            (f"unix:{file}", "Address already in use"),
        ):
            with (
                pytest.raises(OSError, match=f"listen: .* can't be had: .*{why}") as caught,
                running_server(Puppet().backend(), listen=listen, insecure_public=True),
            ):
                pass
            assert "GRPC" not in str(caught.value)
    assert file.read_text() == "mine"
