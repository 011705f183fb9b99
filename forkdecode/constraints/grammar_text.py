"""From what a caller names to the text that llguidance compiles, and its errors in the caller's terms."""

from __future__ import annotations

import json
import re

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from forkdecode.constraint_types import JsonSchema, Lark, Regex
from forkdecode.constraints.endless_lark import endless_rule
from forkdecode.constraints.endless_schema import is_endless
from forkdecode.constraints.schema_numbers import number_problem, schemas_within
from forkdecode.errors import InvalidRequestError, invalid

GrammarSpec = Regex | JsonSchema | Lark
MAX_GBNF_BYTES = 1 << 15
"""Its translation takes time that grows with the square of its rules, and can't be stopped."""
_NO_FORCING = '%llguidance {"no_forcing": true}'
"""Stands last, so that lines keep their numbers. Without it, texts that have one way on would have to be
spelled by the one tokenization that the tokenizer makes of them."""
_FIELDS = {Regex: "constraint.pattern", JsonSchema: "constraint.schema", Lark: "constraint.grammar"}
_ALLOWED = {
    Regex: "a regular expression in Rust's syntax, without look-around and back-references",
    JsonSchema: "a JSON schema of the features that llguidance has",
    Lark: "a grammar in llguidance's dialect of Lark, with a rule `start`",
}
_CONTEXT = re.compile(r"^ *\d+ \| ")
_MAX_MESSAGE = 1000
"""Characters: llguidance lists all special tokens where one is unknown."""
_INNER = re.compile(r"<(state|grammar|backtrace|non-verbose)\b")
_PREFIXES = {
    Regex: re.compile(r'^at \d+\(\d+\): invalid regex ".*?" \(in regex\): ', re.DOTALL),
    JsonSchema: re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: "),
}
_UNICODE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8}))")
_KEPT_ESCAPED = frozenset('"\\[]/^-\n\r\t')


class GrammarError(Exception):
    """Why a grammar can't be had."""


def grammar_text(spec: GrammarSpec) -> str:
    """Lark for llguidance. Raises GrammarError for what is wrong already."""
    if isinstance(spec, Regex):
        # Of Rust's classes \\d, \\w and \\s none is cut down to ASCII.
        if _escapes_nothing(spec.pattern):  # which regex_to_lark leaves out
            raise GrammarError("regex parse error: ends with a backslash that escapes nothing")
        return f"start: /{regex_to_lark(spec.pattern, '')}/\n{_NO_FORCING}\n"
    if isinstance(spec, JsonSchema):
        schema = json.loads(str(spec.schema))
        _check_numbers(schema)
        if is_endless(schema):
            raise GrammarError("no finite JSON is valid by it: what it requires requires itself again")
        return f"start: %json {json.dumps(schema)}\n{_NO_FORCING}\n"
    text = spec.grammar if spec.syntax == "lark" else _from_gbnf(spec.grammar)
    for schema in schemas_within(text):
        _check_numbers(schema)
    if (rule := endless_rule(text)) is not None:
        name = "root" if spec.syntax == "gbnf" and rule == "start" else rule
        raise GrammarError(f"no text matches it: rule {name!r} always leads to itself again")
    return f"{text}\n{_NO_FORCING}\n"


def refusal(spec: GrammarSpec, problem: str, allowed: str | None = None) -> InvalidRequestError:
    """The error of a spec, naming its part at fault."""
    fits = _ALLOWED[type(spec)]
    if isinstance(spec, Lark) and spec.syntax == "gbnf":
        fits = "a grammar in llama.cpp's GBNF, with a rule `root`"
    return invalid(_FIELDS[type(spec)], problem, allowed or fits)


def plain_error(spec: GrammarSpec, message: str) -> str:
    """llguidance's message with its position; without its inner state and our own lines."""
    message = message[: inner.start()] if (inner := _INNER.search(message)) else message
    if (prefix := _PREFIXES.get(type(spec))) is not None:
        message = prefix.sub("", message)
    lines = message.splitlines()
    shows_text = isinstance(spec, Lark)
    context = [bool(_CONTEXT.match(line)) for line in lines]
    kept = [
        line
        for i, line in enumerate(lines)
        if _NO_FORCING not in line
        and (shows_text or not (context[i] or (i and context[i - 1] and not line.strip("^ "))))
    ]
    while kept and not kept[-1].strip(" 0123456789|"):
        kept.pop()  # empty lines of context
    text = "\n".join(kept).strip().removeprefix("panic: ")
    return text[:_MAX_MESSAGE] + "..." * (len(text) > _MAX_MESSAGE) or "llguidance says nothing more"


def _escapes_nothing(pattern: str) -> bool:
    return (len(pattern) - len(pattern.rstrip("\\"))) % 2 == 1


def _check_numbers(schema: object) -> None:
    try:
        problem = number_problem(schema)
    except RecursionError:
        problem = "is nested too deeply"
    if problem is not None:
        raise GrammarError(problem)


def _from_gbnf(text: str) -> str:
    size = len(text.encode())
    if size > MAX_GBNF_BYTES:
        raise GrammarError(f"has {size} bytes of GBNF, of which at most {MAX_GBNF_BYTES} are translated")
    try:
        return gbnf_to_lark(_UNICODE.sub(_character, text))
    except GbnfToLarkError as error:
        raise GrammarError(str(error)) from error
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error
    except Exception as error:  # a plain Exception is what the translation raises for names
        raise GrammarError(str(error) or type(error).__name__) from error


def _character(escape: re.Match[str]) -> str:
    """GBNF's \\uXXXX as the character, which the translation would get wrong."""
    code = int(escape[2] or escape[3], 16)
    try:
        character = chr(code)
        character.encode()
    except (ValueError, OverflowError, UnicodeEncodeError):
        raise GrammarError(f"{escape[0]} is no Unicode character") from None
    if character in _KEPT_ESCAPED or not character.isprintable():
        return f"{escape[1]}\\x{code:02x}" if code < 128 else escape[1] + character
    return str(escape[1]) + character
