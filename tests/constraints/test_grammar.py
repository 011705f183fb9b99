"""Grammars compiled, kept and refused."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from forkdecode.constraint_types import JsonSchema, Lark, Regex
from forkdecode.constraints import grammar, grammar_rows
from forkdecode.constraints.grammar_text import GrammarSpec
from forkdecode.errors import EngineClosedError, GroupFailedError, InvalidRequestError, QueueFullError
from tests.constraints.grammar_bytes import EOS, NO_TEXT, SECOND_EOS, after, grammars, ids_of, spelled

ENDLESS = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}
REFUSED: dict[str, tuple[GrammarSpec, str, str]] = {
    "regex": (Regex("a("), "pattern", "    a(\n     ^\nerror: unclosed group"),
    "look-around": (Regex("(?=a)b"), "pattern", "look-around"),
    "back-reference": (Regex(r"(a)\1"), "pattern", "backreferences are not supported"),
    "empty class": (Regex(r"a[^\s\S]"), "pattern", "no text of this model's tokens matches it"),
    "anchor within": (Regex("a^b"), "pattern", "lookarounds not supported yet; Start in regex /a^b/"),
    "last escape": (Regex("a\\\\\\"), "pattern", "ends with a backslash that escapes nothing"),
    "schema keyword": (JsonSchema({"not": {}}), "schema", 'Unimplemented keys: ["not"]'),
    "unique items": (JsonSchema({"uniqueItems": True}), "schema", 'Unimplemented keys: ["uniqueItems"]'),
    "oneOf": (JsonSchema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "schema", "oneOf"),
    "schema type": (JsonSchema({"type": "foo"}), "schema", "Invalid type: foo"),
    "schema format": (JsonSchema({"format": "phone"}), "schema", "Unknown format: phone"),
    "schema pattern": (JsonSchema({"pattern": "a("}), "schema", "unclosed group"),
    "schema elsewhere": (JsonSchema({"$ref": "http://else.where/x"}), "schema", "does not fetch resources"),
    "schema false": (JsonSchema("false"), "schema", "Unsatisfiable schema: schema is false"),
    "schema bounds": (JsonSchema({"type": "string", "minLength": 2, "maxLength": 1}), "schema", "minLength"),
    "schema type's type": (JsonSchema({"type": 5}), "schema", "type"),
    "rounded bound": (JsonSchema({"minimum": 2**53 + 1}), "schema", "9007199254740993 can't be kept exactly"),
    "deadly bounds": (
        JsonSchema({"type": "integer", "minimum": -(10**25), "maximum": -(10**24)}),
        "schema",
        "between -2**53 and 2**53",
    ),
    "rounded id": (
        JsonSchema({"enum": [1, 1234567890123456789]}),
        "schema",
        "1234567890123456789 can't be kept",
    ),
    "open bound": (
        JsonSchema({"exclusiveMinimum": 0, "maximum": 0.5}),
        "schema",
        "the exclusive bound 0 can't",
    ),
    "endless schema": (JsonSchema(ENDLESS), "schema", "requires itself again"),
    "lark name": (Lark("start: foo"), "grammar", 'at 1(8): unknown name: "foo"\n   1 | start: foo\n'),
    "lark syntax": (Lark('start: "a"\nx: "b" ('), "grammar", "2(9): Expected token ')'"),
    "lark regex": (Lark("start: /a(/"), "grammar", "unclosed group\n   1 | start: /a(/\n              ^;"),
    "no start": (Lark('begin: "a"'), "grammar", "no start rule found"),
    "endless lark": (Lark('start: "a" start'), "grammar", "rule 'start' always leads to itself again"),
    "rounded in lark": (Lark('start: "a" %json {"const": -1e19}'), "grammar", "-1e+19 can't be kept exactly"),
    "lark class": (Lark(r"start: /[^\s\S]/"), "grammar", "no text of this model's tokens matches it"),
    "special token": (Lark("start: <|x|>"), "grammar", 'unknown special token: "<|x|>"'),
    "gbnf syntax": (Lark('root ::= ("a"', "gbnf"), "grammar", "Expected ')' at line 1"),
    "gbnf name": (Lark('root ::= "a" b', "gbnf"), "grammar", "Rule 'b' not found"),
    "no root": (Lark('start ::= "a"', "gbnf"), "grammar", "No 'root' rule found"),
    "endless gbnf": (Lark('root ::= root "a"', "gbnf"), "grammar", "rule 'root' always leads to itself"),
    "gbnf size": (Lark('root ::= "' + "a" * 40_000 + '"', "gbnf"), "grammar", "40011 bytes of GBNF"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_names_its_field_and_says_why(name: str) -> None:
    spec, field, why = REFUSED[name]
    compiler = grammars()
    for _ in range(2):  # an error is not kept, nor is what was refused
        with pytest.raises(InvalidRequestError) as error:
            compiler.of(spec)
        assert error.value.field == f"constraint.{field}"
        assert error.value.limit is not None
        assert why in str(error.value)
        for ours in ("no_forcing", "<state>", "<non-verbose", "panic", "backtrace"):
            assert ours not in str(error.value)
    compiler.close()


def test_both_eos_ids_are_allowed_where_the_grammar_is_complete() -> None:
    constraint = grammars().of(Regex("ab?"))
    assert ids_of(constraint.rows()) == {*b"a", 256}
    assert ids_of(after(constraint, spelled("a"))) == {*b"b", EOS, SECOND_EOS}
    assert ids_of(after(constraint, spelled("ab"))) == {EOS, SECOND_EOS}


def test_special_tokens_are_no_text_but_may_be_asked_for() -> None:
    compiler = grammars()
    assert ids_of(compiler.of(Regex("(?s:.)*")).rows()).isdisjoint({NO_TEXT})
    call = compiler.of(Lark('start: "a" <|call|> "b"'))
    assert ids_of(after(call, spelled("a"))) == {NO_TEXT}
    assert ids_of(after(call, [*b"a", NO_TEXT])) == {ord("b")}


def test_an_eos_id_within_a_grammar_ends_nothing_too_early() -> None:
    constraint = grammars().of(Lark(f'start: "a" (<[{EOS}]> "b" | "c")'))
    assert ids_of(after(constraint, spelled("a"))) == {ord("c")}


def test_stop_ids_end_a_candidate_where_the_grammar_is_complete_and_only_there() -> None:
    constraint = grammars().of(Regex("[ab]{2}"), stop_ids=[ord("b"), NO_TEXT])
    assert ids_of(constraint.rows()) == {ord("a"), 256}
    assert ids_of(after(constraint, spelled("a"))) == {ord("a")}
    assert ids_of(after(constraint, spelled("aa"))) == {EOS, SECOND_EOS, ord("b"), NO_TEXT}


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    read = grammar.grammar_text
    monkeypatch.setattr(grammar, "grammar_text", lambda spec: (made.append(spec.pattern), read(spec))[1])
    compiler = grammars()
    barrier = threading.Barrier(8)

    def ask(_: int) -> set[int]:
        barrier.wait()
        return ids_of(compiler.of(Regex("ab")).rows())

    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(frozenset, pool.map(ask, range(8))))) == 1
    assert made == ["ab"]
    for i in range(grammar.MAX_KEPT - 1):
        compiler.of(Regex(f"a{{{i + 1}}}"))
    compiler.of(Regex("ab"))  # asked for again, so that another one is the oldest
    compiler.of(Regex("x"))
    compiler.of(Regex("ab"))
    assert made.count("ab") == 1
    compiler.of(Regex("a{1}"))
    assert made.count("a{1}") == 2


def test_what_takes_too_long_is_refused_and_may_be_had_later(monkeypatch: pytest.MonkeyPatch) -> None:
    going = threading.Event()
    read = grammar.grammar_text
    monkeypatch.setattr(grammar, "grammar_text", lambda spec: (going.wait(60), read(spec))[1])
    compiler = grammars(seconds=0.01)
    slow = [Regex(f"a{{{i}}}") for i in range(1, 4)]  # more than there are threads
    for spec in slow[:2]:
        with pytest.raises(
            InvalidRequestError, match=r"constraint\.pattern: takes too long .* 0\.01 seconds"
        ):
            compiler.of(spec)
    with pytest.raises(QueueFullError) as busy:  # which is no fault of its own
        compiler.of(slow[2])
    assert (busy.value.field, busy.value.retry_after) == ("constraint", 1.0)
    begun = [compiler.begin(spec) for spec in slow]
    going.set()
    for future in begun:
        assert future is None or future.result(60)
    assert [compiler.begin(spec) for spec in slow] == [None] * 3
    patient = grammars()
    assert all(ids_of(patient.of(spec).rows()) for spec in slow)


def test_a_panic_refuses_the_grammar_or_fails_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What native code raises then is no Exception, and would end the thread that waits."""

    class Panic(BaseException):
        pass

    def panics(*given: object) -> object:
        raise Panic("index out of bounds")

    compiler = grammars()
    rows = compiler.of(Regex("ab")).rows()
    monkeypatch.setattr(grammar_rows, "masks", panics)
    with pytest.raises(GroupFailedError, match=r"^constraint: Panic: index out of bounds") as failed:
        rows.next(np.zeros(1, np.int32), np.array([ord("a")])).allowed().get()
    assert failed.value.field == "constraint"
    monkeypatch.setattr(grammar, "masks", panics)
    with pytest.raises(InvalidRequestError, match=r"constraint\.pattern: Panic: index out of bounds"):
        compiler.of(Regex("cd"))


def test_deep_chains_of_rules_end_no_process() -> None:
    deep = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(9_000)) + 'r9000: "ab"'
    assert ids_of(grammars().of(Lark(deep)).rows()) == {ord("a"), 256}
    definitions = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2_000)}
    schema = {"$ref": "#/$defs/d0", "$defs": definitions | {"d2000": {"type": "null"}}}
    assert ids_of(grammars().of(JsonSchema(json.dumps(schema))).rows()) == {ord("[")}


def test_one_that_needs_too_much_is_refused_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grammar.LIMITS, "step_max_items", 500)
    with pytest.raises(InvalidRequestError, match=r"constraint\.grammar: .*Too many items \(limit 500"):
        grammars().of(Lark("start: " + "A? " * 300 + '\nA: "a" | "b"'))
    monkeypatch.setitem(grammar.LIMITS, "max_grammar_size", 100)
    with pytest.raises(InvalidRequestError, match=r"constraint\.schema: .*grammar"):
        grammars().of(JsonSchema({"properties": {f"p{i}": {"type": "string"} for i in range(100)}}))


def test_closing_fails_what_is_not_worked_out_and_leaves_no_thread() -> None:
    compiler = grammars()
    rows = compiler.of(Regex("a+")).rows()
    compiler.close()
    compiler.close()
    with pytest.raises(GroupFailedError, match="the engine was closed"):
        rows.next(np.zeros(1, np.int32), np.array([97])).allowed().get()
    assert ids_of(rows) == {ord("a")}
    with pytest.raises(EngineClosedError, match="the engine is closed"):
        compiler.of(Regex("b+"))


def test_threads_end_when_nobody_has_the_grammars_any_more() -> None:
    compiler = grammars()
    after(compiler.of(Regex("a+")), spelled("aa"))
    threads = [*compiler._compilers._threads, *compiler._jobs._threads]
    assert threads
    del compiler
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
