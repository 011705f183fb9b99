"""Addresses that can be no server's are told so by name, and not tried for long."""

from __future__ import annotations

import pytest

from forkdecode import AsyncClient, Client, InvalidRequestError, UnavailableError
from forkdecode.client.address import check_address, unknown_host

NOT_FOUND = (
    "errors resolving h:1: [field:hostname lookup error:address lookup failed for h:1: Domain name not found]"
)


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("http://127.0.0.1:50051", "is a URL"),
        ("https://decode.example.org:443/", "tls=Tls() and 'decode.example.org:443'"),
        ("localhost", "has no port"),
        ("localhost:", "has no port"),
        ("::1", "is no address"),
        ("127.0.0.1:fifty", "is no address"),
        ("127.0.0.1:50051/path", "is no address"),
        ("me@127.0.0.1:50051", "is no address"),
        ("two words:50051", "is no address"),
        (":50051", "is no address"),
    ],
)
def test_what_is_no_address_is_refused_before_anything_is_tried(address: str, problem: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidRequestError, match=r"^address: ") as caught:
            kind(address)
        assert caught.value.field == "address"
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:50051", "[::1]:50051", "decode.example.org:443", "a_b:1", "unix:/run/decode",
     "unix:d.sock", "unix-abstract:name", "dns:///decode.example.org", "dns://8.8.8.8/decode:1",
     "ipv4:10.0.0.1:5,10.0.0.2:5"],
)  # fmt: skip
def test_what_grpc_names_servers_by_is_taken(address: str) -> None:
    assert check_address("address", address) == address


def test_a_host_that_is_not_known_is_not_asked_for_again() -> None:
    with (
        Client("dns:///a..b:50051", retries=1000) as client,  # no resolver has to be asked
        pytest.raises(UnavailableError, match=r"^address: the host") as caught,
    ):
        client.decode("hello")
    assert caught.value.field == "address"


@pytest.mark.parametrize(
    ("details", "known"),
    [
        (NOT_FOUND, False),
        ("UNKNOWN: getaddrinfo: Name or service not known", False),
        ("address lookup failed for h:1: Timeout while contacting DNS servers", True),
        ("failed to connect to all addresses; last error: Connection refused", True),
    ],
)
def test_a_resolver_that_cannot_say_now_may_say_later(details: str, known: bool) -> None:
    assert (unknown_host("h:1", details) is None) == known
