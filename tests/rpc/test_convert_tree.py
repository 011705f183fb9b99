"""Tree sessions: commands and events there and back, nothing left out, what is wrong is named."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode.errors import CapacityError, ForkdecodeError, InvalidRequestError
from forkdecode.rpc.convert_tree_commands import (
    CloseCall,
    OpenCall,
    ResumeCall,
    close_message,
    command_message,
    open_message,
    resume_message,
    session_call,
)
from forkdecode.rpc.convert_tree_events import tree_event, tree_events
from forkdecode.rpc.fields import check_known, field_path
from forkdecode.rpc.status import error_message, told_error
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodeDelta,
    NodeInfo,
    NodePath,
    NodeReason,
    NodeScored,
    NodesPruned,
    NodeState,
    NodeStopped,
    OpenTree,
    Pin,
    Prune,
    Refused,
    ScoreNodes,
    Stop,
    TreeEvent,
    TreeLimits,
    TreeOpened,
    Truncate,
    Unpin,
)
from forkdecode.types import Greedy, Options, Sample
from tests.rpc import tree_records as records

UNKNOWN = b"\xc0\x3e\x01"
"""Field 1000, a varint."""


def sent(message: Any) -> Any:
    """As the other side parses it."""
    return type(message).FromString(message.SerializeToString())


def names(record: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


def fields(message: Any) -> set[str]:
    return set(message.DESCRIPTOR.fields_by_name)


class TestThereAndBack:
    @pytest.mark.parametrize("kind", get_args(Command), ids=lambda kind: kind.__name__)
    @given(st.data())
    @settings(deadline=None, max_examples=50)
    def test_commands(self, kind: Any, data: st.DataObject) -> None:
        command = data.draw(records.BY_KIND[kind])
        message = sent(command_message(command))
        check_known(message)
        assert session_call(message) == command

    @given(records.opens)
    @settings(deadline=None)
    def test_opening(self, call: OpenCall) -> None:
        assert session_call(sent(open_message(call))) == call

    def test_a_text_as_chat_is_one_user_message(self) -> None:
        found = session_call(open_message(OpenCall(OpenTree("hi", chat=True))))
        assert found == OpenCall(OpenTree([{"role": "user", "content": "hi"}]))

    def test_resuming_and_closing(self) -> None:
        call = ResumeCall("tree-1", "secret")
        assert session_call(sent(resume_message(call))) == call
        assert "secret" not in repr(call).replace("secret=", "")
        assert session_call(sent(close_message())) == CloseCall()

    @pytest.mark.parametrize("kind", get_args(TreeEvent), ids=lambda kind: kind.__name__)
    @given(st.data())
    @settings(deadline=None, max_examples=50)
    def test_events(self, kind: Any, data: st.DataObject) -> None:
        events = data.draw(st.lists(records.EVENTS[kind], max_size=3))
        found = tree_events(sent(tree_event(events)))
        assert list(map(records.plain, found)) == list(map(records.plain, events))

    @given(st.lists(st.one_of(list(records.EVENTS.values())), max_size=6))
    @settings(deadline=None)
    def test_the_order_of_events(self, events: list[TreeEvent]) -> None:
        found = tree_events(sent(tree_event(events)))
        assert list(map(records.plain, found)) == list(map(records.plain, events))

    def test_unset_is_the_default(self) -> None:
        def read(**action: Any) -> Any:
            return session_call(sent(pb.TreeCommand(command_id=3, **action)))

        assert read(fork_node=pb.ForkNode(node=1)) == Fork(3, 1)
        assert read(decode_nodes=pb.DecodeNodes(nodes=[1])) == Decode(3, (1,), Greedy(), Options())
        assert read(decode_nodes=pb.DecodeNodes(nodes=[1], sample=pb.Sample())) == Decode(3, (1,), Sample())
        assert read(prune_nodes=pb.PruneNodes(nodes=[1])) == Prune(3, (1,))
        assert read(pin_nodes=pb.PinNodes(nodes=[1])) == Pin(3, (1,))
        assert read(pin_nodes=pb.PinNodes(nodes=[1], ttl=0.0)) == Pin(3, (1,), 0.0)
        assert read(score_nodes=pb.ScoreNodes(nodes=[1])) == ScoreNodes(3, (1,))
        assert read(open_tree=pb.OpenTree()) == OpenCall(OpenTree())

    def test_of_a_newer_server_a_change_is_ignored_and_a_state_refused(self) -> None:
        newer = pb.TreeEvent(changes=[pb.TreeChange(pruned=pb.NodesPruned(nodes=[1])), pb.TreeChange()])
        newer.changes[1].MergeFromString(UNKNOWN)
        assert tree_events(sent(newer)) == [NodesPruned(0, (1,))]
        odd = pb.TreeEvent(changes=[pb.TreeChange(stopped=pb.NodeStopped(state=99))])  # type: ignore[arg-type]
        with pytest.raises(ForkdecodeError, match="node state 99 is unknown"):
            tree_events(odd)
        odd.changes[0].stopped.state = pb.NODE_STATE_STOPPED
        odd.changes[0].stopped.finish_reason = 99  # type: ignore[assignment]
        with pytest.raises(ForkdecodeError, match="node reason 99 is unknown"):
            tree_events(odd)


class TestNothingIsLeftOut:
    """Each field of a record has one in the protocol, and the other way round."""

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            (Fork, pb.ForkNode),
            (Extend, pb.ExtendNode),
            (ScoreNodes, pb.ScoreNodes),
            (Prune, pb.PruneNodes),
            (Truncate, pb.TruncateNode),
            (Pin, pb.PinNodes),
            (Unpin, pb.UnpinNodes),
            (Stop, pb.StopNodes),
            (Finish, pb.FinishNodes),
            (Export, pb.ExportNodes),
            (Import, pb.ImportNodes),
            (ResumeCall, pb.ResumeTree),
            (CloseCall, pb.CloseTree),
            (TreeLimits, pb.TreeLimits),
            (NodePath, pb.NodePath),
            (NodeInfo, pb.Node),
            (TreeOpened, pb.TreeOpened),
            (NodeDelta, pb.NodeDelta),
            (NodeStopped, pb.NodeStopped),
        ],
    )
    def test_records(self, record: Any, message: Any) -> None:
        assert names(record) - {"command_id"} == fields(message)

    @pytest.mark.parametrize(
        ("record", "message"),
        [
            (Accepted, pb.CommandAccepted),
            (Refused, pb.CommandRefused),
            (Done, pb.CommandDone),
            (NodeScored, pb.NodeScored),
            (NodesPruned, pb.NodesPruned),
            (Exported, pb.NodesExported),
        ],
    )
    def test_answers(self, record: Any, message: Any) -> None:
        assert names(record) == fields(message)

    def test_decode_and_open(self) -> None:
        assert names(Decode) - {"command_id", "strategy"} == fields(pb.DecodeNodes) - {"greedy", "sample"}
        assert names(OpenTree) - {"chat"} == fields(pb.OpenTree) - {"limits"}

    def test_every_command_and_event_has_its_field(self) -> None:
        actions = pb.TreeCommand.DESCRIPTOR.oneofs_by_name["action"].fields
        assert len(actions) == len(get_args(Command)) + 3
        assert set(records.BY_KIND) == set(get_args(Command))
        assert len(pb.TreeChange.DESCRIPTOR.fields) == len(get_args(TreeEvent))
        assert set(records.EVENTS) == set(get_args(TreeEvent))

    def test_enums(self) -> None:
        assert {f"NODE_STATE_{name.upper()}" for name in get_args(NodeState)} == set(pb.NodeState.keys()[1:])
        assert {f"NODE_REASON_{name.upper()}" for name in get_args(NodeReason)} == set(
            pb.NodeReason.keys()[1:]
        )


def decode_with(change: Callable[[pb.DecodeNodes], Any]) -> pb.TreeCommand:
    message = pb.DecodeNodes(nodes=[1])
    change(message)
    return pb.TreeCommand(decode_nodes=message)


@pytest.mark.parametrize("name", ["536870911", "max_nodes", "command_id", "decode_nodes.17"])
def test_a_name_that_a_command_lacks_stays_as_it_is(name: str) -> None:
    assert field_path(name, decode_with(lambda m: None)) == name


WRONG: list[tuple[pb.TreeCommand, str, str]] = [
    (pb.TreeCommand(), "action", "action"),
    (pb.TreeCommand(command_id=2**63, fork_node=pb.ForkNode()), "command_id", "command_id"),
    (pb.TreeCommand(fork_node=pb.ForkNode(n=0)), "n", "fork_node.n"),
    (pb.TreeCommand(fork_node=pb.ForkNode(n=65537)), "n", "fork_node.n"),
    (pb.TreeCommand(fork_node=pb.ForkNode(n=2, seeds=[1])), "seeds", "fork_node.seeds"),
    (pb.TreeCommand(fork_node=pb.ForkNode(node=2**31)), "node", "fork_node.node"),
    (pb.TreeCommand(decode_nodes=pb.DecodeNodes()), "nodes", "decode_nodes.nodes"),
    (pb.TreeCommand(decode_nodes=pb.DecodeNodes(nodes=[1, 1])), "nodes", "decode_nodes.nodes"),
    (
        decode_with(lambda m: setattr(m.options, "max_tokens", 0)),
        "max_tokens",
        "decode_nodes.options.max_tokens",
    ),
    (
        decode_with(lambda m: setattr(m.options, "cache_salt", "x")),
        "cache_salt",
        "decode_nodes.options.cache_salt",
    ),
    (
        decode_with(lambda m: setattr(m.sample.sampling, "top_p", 0.0)),
        "top_p",
        "decode_nodes.sample.sampling.top_p",
    ),
    (decode_with(lambda m: setattr(m.sample, "n", 0)), "n", "decode_nodes.sample.n"),
    (decode_with(lambda m: m.step.append("")), "step", "decode_nodes.step"),
    (decode_with(lambda m: m.seeds.extend([1, 2])), "seeds", "decode_nodes.seeds"),
    (
        pb.TreeCommand(extend_node=pb.ExtendNode(node=1)),
        "continuation",
        "extend_node.continuation",
    ),
    (pb.TreeCommand(score_nodes=pb.ScoreNodes()), "nodes", "score_nodes.nodes"),
    (
        pb.TreeCommand(score_nodes=pb.ScoreNodes(nodes=[1], continuations=[pb.Continuation()])),
        "continuations",
        "score_nodes.continuations",
    ),
    (
        pb.TreeCommand(score_nodes=pb.ScoreNodes(nodes=[1], top_logprobs=1025)),
        "top_logprobs",
        "score_nodes.top_logprobs",
    ),
    (pb.TreeCommand(prune_nodes=pb.PruneNodes()), "nodes", "prune_nodes.nodes"),
    (pb.TreeCommand(truncate_node=pb.TruncateNode()), "num_tokens", "truncate_node.num_tokens"),
    (pb.TreeCommand(pin_nodes=pb.PinNodes(nodes=[1], ttl=-1.0)), "ttl", "pin_nodes.ttl"),
    (pb.TreeCommand(import_nodes=pb.ImportNodes()), "paths", "import_nodes.paths"),
    (
        pb.TreeCommand(import_nodes=pb.ImportNodes(paths=[pb.NodePath()])),
        "paths[0].token_ids",
        "import_nodes.paths[0].token_ids",
    ),
    (
        pb.TreeCommand(
            import_nodes=pb.ImportNodes(paths=[pb.NodePath(token_ids=[1], finish_reason=99)])  # type: ignore[arg-type]
        ),
        "paths[0].finish_reason",
        "import_nodes.paths[0].finish_reason",
    ),
    (
        pb.TreeCommand(
            import_nodes=pb.ImportNodes(
                paths=[pb.NodePath(token_ids=[1]), pb.NodePath(token_ids=[1], start=2)]
            )
        ),
        "paths[1].start",
        "import_nodes.paths[1].start",
    ),
    (
        pb.TreeCommand(open_tree=pb.OpenTree(prompt=pb.Prompt())),
        "prompt",
        "open_tree.prompt",
    ),
    (
        pb.TreeCommand(open_tree=pb.OpenTree(limits=pb.TreeLimits(max_nodes=0))),
        "max_nodes",
        "open_tree.limits.max_nodes",
    ),
]


class TestWrong:
    @pytest.mark.parametrize(("command", "name", "path"), WRONG, ids=[path for _, _, path in WRONG])
    def test_a_value_is_named_in_both_ways(self, command: pb.TreeCommand, name: str, path: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            session_call(sent(command))
        assert caught.value.field == name
        message = sent(error_message(caught.value, command))
        assert (message.reason, message.field, message.path) == ("InvalidRequestError", name, path)
        assert message.limit == caught.value.limit
        assert str(told_error(message)) == str(caught.value)

    @pytest.mark.parametrize("action", [one.name for one in pb.TreeCommand.DESCRIPTOR.oneofs[0].fields])
    def test_an_id_that_is_too_large_is_refused_whatever_the_command(self, action: str) -> None:
        command = pb.TreeCommand(command_id=2**63)
        getattr(command, action).SetInParent()
        with pytest.raises(InvalidRequestError) as caught:
            session_call(sent(command))
        assert caught.value.field == "command_id"

    def test_a_limit_of_the_session_is_nowhere_in_a_command(self) -> None:
        error = CapacityError("max_nodes: the tree would have 9 nodes", field="max_nodes", limit="at most 8")
        message = error_message(error, pb.TreeCommand(fork_node=pb.ForkNode(n=9)))
        assert (message.field, message.HasField("path")) == ("max_nodes", False)

    def test_an_unknown_field_is_refused_wherever_it_is(self) -> None:
        command = pb.TreeCommand(decode_nodes=pb.DecodeNodes(nodes=[1], options=pb.Options()))
        command.decode_nodes.options.MergeFromString(UNKNOWN)
        with pytest.raises(InvalidRequestError) as caught:
            check_known(sent(command))
        assert caught.value.field == "decode_nodes.options.1000"
        assert field_path("decode_nodes.options.1000", command) == "decode_nodes.options.1000"

    def test_an_error_of_an_unknown_name_is_told_by_its_code(self) -> None:
        error = told_error(pb.Error(reason="NewError", code=3, message="no"))
        assert type(error) is InvalidRequestError
        assert type(told_error(pb.Error(reason="NewError", code=99))) is ForkdecodeError

    def test_what_was_not_raised_on_purpose_tells_nothing(self) -> None:
        message = error_message(RuntimeError("the secret of the house"))
        assert (message.reason, message.message) == ("ForkdecodeError", "internal error")
