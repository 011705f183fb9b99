"""Events and results: there and back without a change, floats included."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import ForkdecodeError
from forkdecode.results import (
    BeamUpdate,
    Candidate,
    CandidateFinished,
    Committed,
    DecodeResult,
    Delta,
    EngineStats,
    Event,
    Finished,
    FinishReason,
    LiveBeam,
    ScoredContinuation,
    ScoreResult,
    ServedModel,
    Started,
    TokenLogprob,
    Usage,
)
from forkdecode.rpc.convert_events import (
    Events,
    decode_event,
    engine_stats,
    event_message,
    model_response,
    score_response,
    score_result,
    served_model,
    stats_response,
)
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.types import Greedy, Strategy
from tests.rpc import records
from tests.rpc.records import NAME


def sent(message: Any) -> Any:
    """As the other side parses it."""
    return type(message).FromString(message.SerializeToString())


def strategy_of(events: list[Event]) -> Strategy:
    last = events[-1] if events else None
    return last.result.strategy if isinstance(last, Finished) else Greedy()


class TestThereAndBack:
    @given(records.steps())
    @settings(deadline=None)
    def test_a_step(self, events: list[Event]) -> None:
        reader = Events(strategy_of(events))
        assert reader.of(sent(event_message(events, NAME))) == events
        assert reader.request_id == NAME

    @given(records.steps())
    @settings(deadline=None)
    def test_one_step_is_not_changed_by_merging(self, events: list[Event]) -> None:
        message = decode_event(events, NAME)
        known = [e for e in events if not isinstance(e, BeamUpdate)]
        found = Events(strategy_of(events)).of(sent(message))
        assert [e for e in found if not isinstance(e, BeamUpdate)] == known

    @given(records.score_results())
    @settings(deadline=None)
    def test_scores(self, result: ScoreResult) -> None:
        assert score_result(sent(score_response(result))) == result

    @given(st.data())
    def test_stats_and_models(self, data: st.DataObject) -> None:
        number = st.integers(0, 2**63)
        size = len(dataclasses.fields(EngineStats)) - 1
        counts = data.draw(st.lists(number, min_size=size, max_size=size))
        rows = tuple(data.draw(st.lists(number, max_size=4)))
        names = [f.name for f in dataclasses.fields(EngineStats) if f.name != "steps_by_rows"]
        stats = EngineStats(**dict(zip(names, counts, strict=True)), steps_by_rows=rows)
        assert engine_stats(sent(stats_response(stats))) == stats
        model = ServedModel(
            "a/b", "float32", 32000, 2048, (1, 2), 16, 2**40, True, False, "0.1", 2**22, ("a", "b")
        )
        assert served_model(sent(model_response(model))) == model

    def test_the_name_comes_with_the_first_message_alone(self) -> None:
        reader = Events(Greedy())
        assert reader.of(decode_event([Started(NAME, 3, 1)], NAME)) == [Started(NAME, 3, 1)]
        assert reader.of(decode_event([Delta(NAME, 0, (1,), "x")])) == [Delta(NAME, 0, (1,), "x")]

    def test_an_empty_start_is_a_start(self) -> None:
        assert Events(Greedy()).of(sent(decode_event([Started(NAME, 0, 0)], NAME))) == [Started(NAME, 0, 0)]

    def test_of_a_newer_server_a_reason_is_refused_and_a_field_ignored(self) -> None:
        message = pb.DecodeEvent(request_id=NAME, candidates_finished=[pb.CandidateFinished(candidate=1)])
        with pytest.raises(ForkdecodeError, match="finish_reason 0 is unknown"):
            Events(Greedy()).of(message)
        newer = pb.DecodeEvent.FromString(
            decode_event([Started(NAME, 3, 1)], NAME).SerializeToString() + b"\xc0\x3e\x01"
        )
        assert Events(Greedy()).of(newer) == [Started(NAME, 3, 1)]


def names(record: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


class TestNothingIsLeftOut:
    """Each field of a record has one in the protocol, and the other way round."""

    @pytest.mark.parametrize(
        ("record", "message", "elsewhere"),
        [
            (TokenLogprob, pb.TokenLogprob, set()),
            (Candidate, pb.Candidate, set()),
            (Usage, pb.Usage, set()),
            (EngineStats, pb.GetStatsResponse, set()),
            (ServedModel, pb.GetModelResponse, set()),
            (LiveBeam, pb.LiveBeam, set()),
            (ScoreResult, pb.ScoreResponse, set()),
            (ScoredContinuation, pb.ScoredContinuation, {"index"}),
            (Started, pb.Started, {"request_id"}),
            (Delta, pb.Delta, {"request_id"}),
            (Committed, pb.Committed, {"request_id"}),
            (BeamUpdate, pb.BeamUpdate, {"request_id"}),
            (CandidateFinished, pb.CandidateFinished, {"request_id"}),
            (DecodeResult, pb.Finished, {"request_id", "strategy"}),
        ],
    )
    def test_records(self, record: Any, message: Any, elsewhere: set[str]) -> None:
        assert names(record) - elsewhere == set(message.DESCRIPTOR.fields_by_name)

    def test_every_event_has_its_field(self) -> None:
        kinds = {kind.__name__ for kind in get_args(Event)}
        fields = pb.DecodeEvent.DESCRIPTOR.fields
        assert kinds == {field.message_type.name for field in fields if field.message_type is not None}

    def test_finish_reasons(self) -> None:
        assert {f"FINISH_REASON_{r.upper()}" for r in get_args(FinishReason)} == set(
            pb.FinishReason.keys()[1:]
        )
