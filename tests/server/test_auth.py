"""Files of tokens: what they may say, and how they are refused."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from forkdecode import AuthenticationError, InvalidRequestError
from forkdecode.server.auth import ANYBODY, OPEN, Limits, read_tokens

GOOD = {"name": "a", "token": "12345678"}


def write(folder: Path, content: object, name: str = "tokens.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_tokens_in_clear_and_as_digests(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"of-the-second").hexdigest()
    book = read_tokens(
        write(
            tmp_path,
            {
                "tokens": [
                    {"name": "first", "token": "of-the-first", "max_requests": 3},
                    {"name": "second", "token_sha256": digest.upper()},
                ]
            },
        )
    )
    assert book.needs_token
    first = book.identify([("x", "y"), ("authorization", "Bearer of-the-first")])
    assert (first.name, first.limits) == ("first", Limits(max_requests=3))
    second = book.identify([("authorization", b"bearer of-the-second")])
    assert (second.name, second.limits) == ("second", Limits())
    for wrong in (digest, "of-the-firs", "of-the-first2", ""):
        with pytest.raises(AuthenticationError):
            book.identify([("authorization", f"Bearer {wrong}")])


def test_without_tokens_anybody_may_call() -> None:
    assert not OPEN.needs_token
    assert OPEN.identify(None) is ANYBODY


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ('{"tokens": [{"name": "a", "name": "b", "token": "12345678"}]}', "the key 'name' stands twice"),
        ([], "has no list"),
        ({"tokens": []}, "has no list"),
        ({"tokens": [{"name": "a", "token": "12345678"}], "more": 1}, "has no list"),
        ({"tokens": ["a"]}, "entry 1: entry: is no table"),
        ({"tokens": [{"name": "a", "token": "12345678", "max_request": 1}]}, "max_request: is unknown"),
        ({"tokens": [{"token": "12345678"}]}, "name"),
        ({"tokens": [{"name": "", "token": "12345678"}]}, "name: is empty"),
        ({"tokens": [{"name": "a"}]}, "token: both token and token_sha256 are given, or neither"),
        ({"tokens": [{"name": "a", "token": "12345678", "token_sha256": "0" * 64}]}, "token: both"),
        ({"tokens": [{"name": "a", "token": "short"}]}, "token: can't be sent"),
        ({"tokens": [{"name": "a", "token": "with a space"}]}, "token: can't be sent"),
        ({"tokens": [{"name": "a", "token_sha256": "0" * 63}]}, "token_sha256: is no SHA-256"),
        ({"tokens": [{"name": "a", "token": "12345678", "max_blocks": 0}]}, "max_blocks"),
        (
            {"tokens": [{"name": "a", "token": "12345678"}, {"name": "a", "token": "87654321"}]},
            "entry 2: name",
        ),
        (
            {"tokens": [{"name": "a", "token": "12345678"}, {"name": "b", "token": "12345678"}]},
            "entry 2: token",
        ),
    ],
)
def test_a_wrong_file_is_refused_without_its_tokens(tmp_path: Path, content: object, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        read_tokens(write(tmp_path, content))
    assert caught.value.field == "tokens"
    assert "12345678" not in str(caught.value)


def test_toml_too(tmp_path: Path) -> None:
    path = write(tmp_path, '[[tokens]]\nname = "a"\ntoken = "12345678"\nmax_blocks = 9\n', "tokens.toml")
    assert read_tokens(path).identify([("authorization", "Bearer 12345678")]).limits.max_blocks == 9
    with pytest.raises(InvalidRequestError, match="is no TOML"):
        read_tokens(write(tmp_path, "tokens = [", "bad.toml"))


@pytest.mark.parametrize("name", ["tokens.json", "TOKENS.JSON", "tokens.toml"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_as_editors_write_them(tmp_path: Path, name: str, mark: str) -> None:
    toml = '[[tokens]]\nname = "a"\ntoken = "12345678"\n'
    content = toml if name.endswith("toml") else json.dumps({"tokens": [GOOD]})
    path = tmp_path / name
    path.write_text(mark + content, "utf-8")
    assert read_tokens(path).identify([("authorization", "Bearer 12345678")]).name == "a"
