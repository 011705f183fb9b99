"""Whether texts match what they were held to, by means that have no part in holding them to it."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from llguidance import LLMatcher

from forkdecode import Candidate, JsonSchema
from forkdecode.constraints.grammar_text import GrammarSpec, grammar_text
from forkdecode.constraints.grammar_tokens import grammar_tokens
from forkdecode.text.token_bytes import TokenBytes

EOS = 256
BYTES = grammar_tokens(TokenBytes.build([bytes([b]) for b in range(256)] + [b""]), EOS + 1, [EOS])


def reads(spec: GrammarSpec, text: bytes) -> tuple[bool, bool]:
    """Whether a fresh matcher takes the text, byte by byte, and whether the grammar is complete then."""
    matcher = LLMatcher(BYTES.tokenizer, grammar_text(spec), log_level=0)
    taken = matcher.try_consume_tokens(list(text)) == len(text)
    return taken, taken and bool(matcher.is_accepting())


def check(spec: GrammarSpec, candidate: Candidate, tokens: TokenBytes, ends: tuple[int, ...]) -> None:
    """A candidate that ended by an EOS or stop id matches; one that was cut off could have."""
    reason, ids = candidate.finish_reason, list(candidate.token_ids)
    if reason in {"eos", "stop"}:
        assert ids.pop() in ends
    assert not set(ids) & set(ends)
    text = b"".join(map(tokens.of, ids))
    taken, complete = reads(spec, text)
    assert taken, text
    if reason == "length":
        return
    assert complete, text
    assert candidate.text == text.decode()
    if isinstance(spec, JsonSchema):
        schema: Any = json.loads(str(spec.schema))
        jsonschema.validate(json.loads(candidate.text), schema, cls=jsonschema.Draft202012Validator)
