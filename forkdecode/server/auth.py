"""Who calls: bearer tokens, and what each of them may have running."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from forkdecode.checks import MAX_INT, check_int, check_unicode, keep, shown
from forkdecode.errors import AuthenticationError, InvalidRequestError, invalid
from forkdecode.text_file import UTF8

Metadata = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one caller may have running at a time; None is no limit.

    max_row_tokens: candidates x (prompt + max_tokens), summed over requests, those of tree sessions too.
    max_blocks: KV blocks that the requests can come to hold if they share nothing but their prompts' full
    blocks. max_sessions: tree sessions. max_tree_nodes, max_tree_blocks: live nodes, and KV blocks that
    they refer to, of all those sessions together.
    """

    max_requests: int | None = None
    max_row_tokens: int | None = None
    max_blocks: int | None = None
    max_sessions: int | None = None
    max_tree_nodes: int | None = None
    max_tree_blocks: int | None = None

    def __post_init__(self) -> None:
        for name in (one.name for one in fields(self)):
            if getattr(self, name) is not None:
                wide = name in ("max_row_tokens", "max_blocks")
                keep(
                    self, name, check_int, 0 if name == "max_sessions" else 1, 2**63 - 1 if wide else MAX_INT
                )


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as logs name it."""

    name: str
    limits: Limits = Limits()


ANYBODY = Caller("anonymous")
"""Whoever calls a server that asks for no token."""


class TokenBook:
    """The tokens that a server takes. Holds their SHA-256 alone."""

    def __init__(self, callers: Mapping[bytes, Caller]) -> None:
        self._entries = tuple(callers.items())

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._entries)

    def become(self, other: TokenBook) -> None:
        """Takes the tokens of `other` instead of its own, which must not let anybody in. Calls that run go
        on. From any thread."""
        assert other.needs_token, "a server that asks for tokens goes on asking"
        self._entries = other._entries

    @property
    def needs_token(self) -> bool:
        """Whether anybody may call."""
        return bool(self._entries)

    def identify(self, metadata: Metadata | None) -> Caller:
        """The caller whose token is in `authorization: Bearer TOKEN`. Raises AuthenticationError."""
        if not self._entries:
            return ANYBODY
        given = [value for key, value in metadata or () if key == "authorization"]
        if not given:
            raise AuthenticationError("no token: send `authorization: Bearer TOKEN`", field="authorization")
        digest = hashlib.sha256(_bearer(given[0])).digest()
        found: Caller | None = None
        for known, caller in self._entries:
            # All of them, each in constant time: how long it takes tells nothing of any token.
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None or len(given) > 1:
            raise AuthenticationError("the token is not known here", field="authorization")
        return found


OPEN = TokenBook({})
"""Of a server that asks for no token."""


def _bearer(value: str | bytes) -> bytes:
    text = value.encode() if isinstance(value, str) else value
    scheme, _, token = text.partition(b" ")
    if scheme.lower() != b"bearer" or not token:
        raise AuthenticationError("authorization is not of the form `Bearer TOKEN`", field="authorization")
    return token.strip()


def read_tokens(path: Path) -> TokenBook:
    """The tokens of a TOML or JSON file.

    A list `tokens` of tables with `name`, either `token` or `token_sha256` (of the token, in hex), and
    any of the limits of `Limits`. Raises InvalidRequestError naming
    the entry and what is wrong; the text of a token is in no error.
    """
    is_json = path.suffix.lower() == ".json"
    try:
        text = path.read_text(UTF8)
        content = json.loads(text, object_pairs_hook=_table) if is_json else tomllib.loads(text)
    except InvalidRequestError as error:
        raise invalid("tokens", f"{path}: {error}", "each key of a table once") from None
    except OSError as error:
        raise invalid("tokens", f"{path} can't be read: {error.strerror}", "a readable file") from None
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise invalid("tokens", f"{path} is no {kind}{where}", "a TOML or .json file of tokens") from None
    entries = content.get("tokens") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries or set(content) != {"tokens"}:
        raise invalid("tokens", f"{path} has no list `tokens` alone", "[[tokens]] tables, at least one")
    return _book(entries)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of JSON, which by itself lets the last of a key's values count. TOML refuses that."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise InvalidRequestError(f"the key {shown(key)} stands twice in a table")
        table[key] = value
    return table


def _book(entries: list[Any]) -> TokenBook:
    callers: dict[bytes, Caller] = {}
    names: set[str] = set()
    for number, entry in enumerate(entries, 1):
        try:
            digest, caller = _entry(entry)
            if digest in callers:
                raise invalid("token", "is that of another entry", "a token of its own")
            if caller.name in names:
                raise invalid("name", f"{shown(caller.name)} is that of another entry", "a name of its own")
        except InvalidRequestError as error:
            raise InvalidRequestError(
                f"tokens: entry {number}: {error}", field="tokens", limit=error.limit
            ) from None
        callers[digest] = caller
        names.add(caller.name)
    return TokenBook(callers)


_LIMITS = tuple(field.name for field in fields(Limits))


def _entry(entry: Any) -> tuple[bytes, Caller]:
    if not isinstance(entry, dict):
        raise invalid("entry", "is no table", "name, token or token_sha256, limits")
    unknown = sorted(set(entry) - {"name", "token", "token_sha256", *_LIMITS})
    if unknown:
        raise invalid(unknown[0], "is unknown", ", ".join(("name", "token", "token_sha256", *_LIMITS)))
    name = check_unicode("name", entry.get("name"), "a non-empty text")
    if not name:
        raise invalid("name", "is empty", "a non-empty text")
    limits = Limits(**{key: entry[key] for key in _LIMITS if key in entry})
    return _digest(entry), Caller(name, limits)


def _digest(entry: Mapping[str, Any]) -> bytes:
    if ("token" in entry) == ("token_sha256" in entry):
        raise invalid("token", "both token and token_sha256 are given, or neither", "exactly one of them")
    if "token_sha256" in entry:
        text = entry["token_sha256"]
        if not isinstance(text, str) or not re.fullmatch(r"[0-9a-fA-F]{64}", text):
            raise invalid("token_sha256", "is no SHA-256", "64 hexadecimal digits")
        return bytes.fromhex(text)
    token = entry["token"]
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]{8,4096}", token):
        raise invalid("token", "can't be sent as a header", "8 to 4096 printable ASCII characters, no spaces")
    return hashlib.sha256(token.encode()).digest()
