"""Rules of a Lark grammar that derive no text because they never end, which llguidance does not look for.

A context-free rule is productive when one of its alternatives is made of productive parts (Hopcroft,
Ullman, "Introduction to automata theory", section 4.4). This reads just as much of a grammar as that takes,
and takes what it can't read to be productive: llguidance says what is wrong with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_PASSES = 50
"""Over all rules, forwards and backwards in turns: chains in either order take one or two."""
MAX_DEPTH = 200
_TOKEN = re.compile(
    r"""(?P<newline>\n)
    | (?P<skip>[ \t\r\f]+|//[^\n]*|\#[^\n]*)
    | (?P<text>"(?:[^"\\\n]|\\.)*"i? | /(?![/*])(?:[^/\\\n]|\\.)+/[a-z]* | <[^<>\n]*>)
    | (?P<directive>%[a-z_]+)
    | (?P<name>[!?]?[A-Za-z_][A-Za-z0-9_]*)
    | (?P<number>\d+)
    | (?P<mark>->|\.\.|[()\[\]{}|*+?~,:.&=@-])""",
    re.VERBOSE,
)
_INLINE = {"%json", "%regex"}
_NESTED = {"%lark"}


class _UnreadableError(Exception):
    pass


class _Token(NamedTuple):
    kind: str
    text: str


def endless_rule(grammar: str) -> str | None:
    """ "start" if it can't derive any finite text whatever its terminals match, or None."""
    try:
        rules = dict(_rules(list(_tokens(grammar))))
        if "start" not in rules:
            return None
        productive: set[str] = set()
        waiting = list(rules)
        for _ in range(MAX_PASSES):
            for name in waiting:
                if _ends(rules[name], rules, productive):
                    productive.add(name)
            if "start" in productive:
                return None
            left = [name for name in reversed(waiting) if name not in productive]
            if len(left) == len(waiting):
                return "start"
            waiting = left
    except (_UnreadableError, RecursionError):
        pass
    return None


def _tokens(grammar: str) -> Iterator[_Token]:
    at = 0
    while at < len(grammar):
        found = _TOKEN.match(grammar, at)
        if found is None or found.lastgroup is None:
            raise _UnreadableError
        at = found.end()
        if found.lastgroup == "directive" and found[0] not in _NESTED:
            yield _Token("text" if found[0] in _INLINE else "directive", found[0])
            at = _after_json(grammar, at) if found[0] in {*_INLINE, "%llguidance"} else at
        elif found.lastgroup == "directive":
            raise _UnreadableError
        elif found.lastgroup != "skip":
            yield _Token(found.lastgroup, found[0])


def _after_json(grammar: str, at: int) -> int:
    start = at + len(grammar[at:]) - len(grammar[at:].lstrip())
    try:
        return json.JSONDecoder().raw_decode(grammar, start)[1]
    except ValueError:
        raise _UnreadableError from None


def _rules(tokens: Sequence[_Token]) -> Iterator[tuple[str, list[_Token]]]:
    """Each rule's name and the tokens of its alternatives; not of terminals (upper case)."""
    at, name, body = 0, "", list[_Token]()
    while at < len(tokens):
        after = _definition(tokens, at) if at == 0 or tokens[at - 1].kind == "newline" else None
        if after is None and tokens[at].kind != "directive":
            body.append(tokens[at])
            at += 1
            continue
        if name and not _is_terminal(name):
            yield name, body
        name, body = "", []
        if after is None:
            while at < len(tokens) and tokens[at].kind != "newline":
                at += 1
        else:
            name, at = tokens[at].text.lstrip("!?"), after
    if name and not _is_terminal(name):
        yield name, body


def _definition(tokens: Sequence[_Token], at: int) -> int | None:
    """Where the alternatives begin of the definition that begins at `at`, if one does."""
    if tokens[at].kind != "name":
        return None
    at += 1
    if at < len(tokens) and tokens[at].text == "[":
        while at < len(tokens) and tokens[at].text != "]":
            at += 1
        at += 1
    return at + 1 if at < len(tokens) and tokens[at].text == ":" else None


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _ends(body: Sequence[_Token], rules: dict[str, list[_Token]], productive: set[str]) -> bool:
    flat = [token for token in body if token.kind != "newline"]
    ends, at = _alternatives(flat, 0, rules, productive, 0)
    if at < len(flat):
        raise _UnreadableError
    return ends


def _alternatives(
    body: Sequence[_Token], at: int, rules: dict[str, list[_Token]], productive: set[str], depth: int
) -> tuple[bool, int]:
    """Whether one of the alternatives from `at` on ends, and where they stop."""
    if depth > MAX_DEPTH:
        raise _UnreadableError
    some, every = False, True
    while at < len(body) and body[at].text not in {")", "]"}:
        kind, text = body[at]
        at += 1
        if text == "|":
            some, every = some or every, True
            continue
        ends = True
        if text in {"(", "["}:
            ends, at = _alternatives(body, at, rules, productive, depth + 1)
            if at >= len(body):
                raise _UnreadableError
            ends, at = ends or text == "[", at + 1
        elif kind == "name":
            ends = _is_terminal(text) or text not in rules or text in productive
        optional, at = _repetition(body, at)
        every = every and (ends or optional)
    return some or every, at


def _repetition(body: Sequence[_Token], at: int) -> tuple[bool, int]:
    """Whether what stands before `at` may be left out, and where its repetition ends: ?, *, +, ~2,
    ~2..3, {2}, {2,}, {,3}, {2,3} or nothing."""
    mark = body[at].text if at < len(body) else ""
    if mark in {"*", "?", "+"}:
        return mark != "+", at + 1
    if mark not in {"{", "~"}:
        return False, at
    least, at = (body[at + 1].text if at + 1 < len(body) else ""), at + 1
    while at < len(body) and (body[at].kind == "number" or body[at].text in {",", "..", "}"}):
        at += 1
    return not least.isdecimal() or int(least) == 0, at
