"""What crosses comes out as it went in, and bytes that nobody wrote are refused."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import ForkdecodeError, GroupFailedError, InvalidRequestError, QueueFullError
from forkdecode.scheduler.events import BeamStep, CandidateRecord, TokensAppended
from forkdecode.step import BlockMoves
from forkdecode.types import BestOf, Greedy, Options
from forkdecode.wire.codec import MAX_DEPTH, RECORD_CODE, Codec
from forkdecode.wire.messages import Cancel, Events
from forkdecode.wire.records import CODEC
from tests.wire.generated import ERRORS, records

KINDS = sorted(CODEC.registry.values(), key=lambda kind: kind.__name__)


def bits(value: Any) -> Any:
    """What two values share when they are equal to the last bit and type, arrays and errors included."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, ForkdecodeError):
        return type(value), bits((str(value), *vars(value).items()))
    if dataclasses.is_dataclass(value):
        return type(value), [bits(getattr(value, f.name)) for f in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return tuple, [bits(item) for item in value]
    if isinstance(value, dict):
        return dict, [(bits(key), bits(item)) for key, item in value.items()]
    return type(value), repr(value)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_record_comes_back(kind: type) -> None:
    @settings(max_examples=15)
    @given(records(kind))
    def check(record: Any) -> None:
        data = CODEC.encode(record)
        back = CODEC.decode(data)
        assert bits(back) == bits(record)
        assert CODEC.encode(back) == data

    check()


@settings(max_examples=60)
@given(st.sampled_from(KINDS).flatmap(records), st.data())
def test_hostile_bytes_are_a_value_error_or_a_record(record: Any, data: st.DataObject) -> None:
    good = CODEC.encode(record)
    assert good
    for _ in range(20):
        bad = bytearray(good)
        for _ in range(data.draw(st.integers(1, 3))):
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
        cut = data.draw(st.integers(0, len(bad)))
        for attempt in (bytes(bad), bytes(bad[:cut]), bytes(bad) + b"\x00"):
            with contextlib.suppress(ValueError):
                CODEC.decode(attempt)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        CODEC.decode(data)


def _record(cls: type, *fields: Any) -> bytes:
    return msgpack.packb(msgpack.ExtType(RECORD_CODE, msgpack.packb((cls.__name__, *fields))))


def test_fields_of_wrong_types_are_refused() -> None:
    for data in (
        _record(Cancel, "one"),
        _record(Cancel, True),
        _record(Cancel),
        _record(Cancel, 1, 2),
        _record(Events, 3),
        _record(Events, (1,)),
        _record(BeamStep, "r", (1, 2), 0.0, 1),
        _record(Greedy, 1),
        _record(Options, *([None] * len(dataclasses.fields(Options)))),
        _record(Options),
        msgpack.packb(msgpack.ExtType(32, msgpack.packb(("SystemExit", "x", *[None] * 5)))),
        msgpack.packb(msgpack.ExtType(32, msgpack.packb(("CapacityError", 1, *[None] * 5)))),
        msgpack.packb({(): 1, msgpack.ExtType(0, b""): 2}),
        msgpack.packb(msgpack.ExtType(127, b"")),
        msgpack.packb(msgpack.ExtType(RECORD_CODE, b"")),
        msgpack.packb(msgpack.ExtType(RECORD_CODE, msgpack.packb(()))),
        msgpack.packb(msgpack.ExtType(RECORD_CODE, msgpack.packb(("object",)))),
        msgpack.packb(msgpack.ExtType(RECORD_CODE, msgpack.packb(({},)))),
        msgpack.packb(msgpack.ExtType(0, b"abc")),
        msgpack.packb(msgpack.ExtType(6, b"\x02")),
        msgpack.packb(msgpack.ExtType(15, b"\x02")),
        msgpack.packb(msgpack.ExtType(16, b"")),
        msgpack.packb(msgpack.ExtType(16, b"\xff" + b"\0" * 9)),
        msgpack.packb(msgpack.ExtType(16, b"\x02" + b"\xff" * 16)),
        b"\xdd\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"",
    ):
        with pytest.raises(ValueError):
            CODEC.decode(data)


def test_depth_is_bounded_whatever_the_bytes_say() -> None:
    data = msgpack.packb(1)
    for _ in range(5000):
        data = msgpack.packb(msgpack.ExtType(RECORD_CODE, data))
    with pytest.raises(ValueError, match=f"more than {MAX_DEPTH} deep"):
        CODEC.decode(data)


def test_what_the_record_itself_forbids_is_refused() -> None:
    fields = [getattr(Options(), f.name) for f in dataclasses.fields(Options)]
    with pytest.raises(InvalidRequestError, match="max_tokens"):
        CODEC.decode(_record(Options, 0, *fields[1:]))


def test_errors_cross_with_all_that_they_say() -> None:
    for kind in ERRORS:
        error = kind("w\udc80hy", field="f", limit="1 to 3", request_id="r", retry_after=2.5)
        back = CODEC.decode(CODEC.encode(error))
        assert type(back) is kind
        assert (str(back), back.field, back.limit, back.request_id, back.retry_after) == (
            "w\udc80hy", "f", "1 to 3", "r", 2.5,
        )  # fmt: skip


def test_that_an_error_has_a_cause_crosses() -> None:
    error = GroupFailedError("the model failed: ValueError: why")
    assert CODEC.decode(CODEC.encode(error)).__cause__ is None
    error.__cause__ = ValueError("why")
    back = CODEC.decode(CODEC.encode(error))
    assert isinstance(back.__cause__, RuntimeError)
    assert "why" in str(back.__cause__)


def test_an_error_of_a_class_that_does_not_cross_comes_as_its_base() -> None:
    class SpecialError(QueueFullError):
        pass

    assert type(CODEC.decode(CODEC.encode(SpecialError("x")))) is QueueFullError


def test_callables_and_strangers_do_not_cross() -> None:
    for stranger in (BestOf(rank_by=len), object(), {1, 2}, np.array(["a"]), 1j):
        with pytest.raises(TypeError, match="cross"):
            CODEC.encode(stranger)
    with pytest.raises(ValueError, match="64 bits"):
        CODEC.encode(2**70)


def test_arrays_are_the_readers_own() -> None:
    moves = BlockMoves(np.arange(6, dtype=np.int32)[::2], np.zeros(3, np.int32))
    back = CODEC.decode(CODEC.encode(moves))
    back.source[0] = 7
    assert back.source.tolist() == [7, 2, 4]
    assert back.source.flags.owndata


def test_the_schema_changes_with_a_field() -> None:
    @dataclasses.dataclass(frozen=True)
    class Old:
        a: int

    @dataclasses.dataclass(frozen=True)
    class New:
        a: int
        b: int

    New.__name__ = "Old"
    assert Codec([Old]).schema != Codec([New]).schema


def test_a_step_of_sixteen_requests_is_small() -> None:
    """4 rows each; front ends pay for each byte."""
    rows = np.arange(4)
    step = Events(
        tuple(
            TokensAppended(
                f"request-12345678-{i}", rows.astype(np.int32), rows, *[rows.astype(np.float32)] * 2, None
            )
            for i in range(16)
        )
    )
    assert len(CODEC.encode(step)) < 3000


def test_long_token_lists_are_checked_too() -> None:
    record = CandidateRecord(0, (1,) * 1000, "eos", 0.0, 0.0, 0.0, None)
    data = CODEC.encode(dataclasses.replace(record, token_ids=(*record.token_ids, "x")))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="token_ids"):
        CODEC.decode(data)
