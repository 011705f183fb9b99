"""Commands of tree sessions to and from the protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar, cast

from forkdecode.checks import check_int, check_unicode, keep
from forkdecode.errors import InvalidRequestError, invalid
from forkdecode.rpc.convert_options import options_message, options_of
from forkdecode.rpc.convert_prompts import piece_of, prompt_message, prompt_of, token_ids
from forkdecode.rpc.convert_strategies import set_strategy, strategy_of
from forkdecode.rpc.convert_tree_nodes import path_message, path_of
from forkdecode.rpc.fields import given
from forkdecode.rpc.v1 import decode_pb2 as pb
from forkdecode.tree_types import (
    Command,
    Decode,
    Export,
    Extend,
    Finish,
    Fork,
    Import,
    OpenTree,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    TreeLimits,
    Truncate,
    Unpin,
)
from forkdecode.tree_types.commands import MAX_COMMAND_ID
from forkdecode.types import Greedy, Sample

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Begins a session. limits: those of TreeLimits that it asks for, by name; for the others the
    server's hold."""

    opening: OpenTree
    limits: Mapping[str, int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TreeLimits(**cast(Any, self.limits))


@dataclass(frozen=True, slots=True)
class ResumeCall:
    """Takes a session up again."""

    tree: str
    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        keep(self, "tree", check_unicode)
        keep(self, "secret", check_unicode)


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Ends a session."""


SessionCall: TypeAlias = OpenCall | ResumeCall | CloseCall | Command
_PLAIN: Mapping[type[Command], str] = {
    Fork: "fork_node",
    Prune: "prune_nodes",
    Truncate: "truncate_node",
    Pin: "pin_nodes",
    Unpin: "unpin_nodes",
    Stop: "stop_nodes",
    Finish: "finish_nodes",
    Export: "export_nodes",
}
"""Those whose fields are the same plain values in both."""


def session_call(command: pb.TreeCommand) -> SessionCall:
    """Raises InvalidRequestError: its field is the SDK's name."""
    action = command.WhichOneof("action")
    if action is None:
        raise invalid("action", "is not set", ", ".join(_READERS))
    number = check_int("command_id", command.command_id, 0, MAX_COMMAND_ID)
    return _READERS[action](number, getattr(command, action))


def open_message(call: OpenCall) -> pb.TreeCommand:
    """Raises InvalidRequestError for a prompt that can't be sent."""
    opening = call.opening
    message = pb.OpenTree(seed=opening.seed, cache_salt=opening.cache_salt)
    if opening.prompt is not None:
        message.prompt.CopyFrom(prompt_message(opening.prompt, chat=opening.chat))
    message.limits.CopyFrom(pb.TreeLimits(**cast(Any, call.limits)))
    return pb.TreeCommand(open_tree=message)


def resume_message(call: ResumeCall) -> pb.TreeCommand:
    return pb.TreeCommand(resume_tree=pb.ResumeTree(tree=call.tree, secret=call.secret))


def close_message() -> pb.TreeCommand:
    return pb.TreeCommand(close_tree=pb.CloseTree())


def command_message(command: Command) -> pb.TreeCommand:
    """The command as it is sent."""
    message = pb.TreeCommand(command_id=command.command_id)
    match command:
        case Decode():
            _write_decode(message.decode_nodes, command)
        case Extend():
            message.extend_node.node = command.node
            message.extend_node.continuation.CopyFrom(_piece(command.continuation))
        case ScoreNodes():
            message.score_nodes.CopyFrom(
                pb.ScoreNodes(
                    nodes=command.nodes,
                    continuations=map(_piece, command.continuations),
                    top_logprobs=command.top_logprobs,
                    priority=command.priority,
                )
            )
        case Import():
            message.import_nodes.paths.extend(map(path_message, command.paths))
            message.import_nodes.parents.update(dict(command.parents))
        case _:
            action = getattr(message, _PLAIN[type(command)])
            values = {name: getattr(command, name) for name in _names(type(command))}
            action.CopyFrom(type(action)(**values))
    return message


def limits_message(limits: TreeLimits) -> pb.TreeLimits:
    return pb.TreeLimits(**given_limits(limits))


def given_limits(limits: TreeLimits) -> dict[str, Any]:
    """Those that limit."""
    values = {one.name: getattr(limits, one.name) for one in fields(TreeLimits)}
    return {name: value for name, value in values.items() if value is not None}


def limits_of(message: pb.TreeLimits) -> dict[str, Any]:
    """Those that are set, unchecked."""
    return given(message, (one.name for one in fields(TreeLimits)))


def _write_decode(message: pb.DecodeNodes, command: Decode) -> None:
    message.nodes.extend(command.nodes)
    set_strategy(message, command.strategy)
    message.options.CopyFrom(options_message(command.options))
    message.step.extend(command.step)
    message.seeds.extend(command.seeds or ())


def _piece(piece: str | tuple[int, ...]) -> pb.Continuation:
    if isinstance(piece, str):
        return pb.Continuation(text=piece)
    return pb.Continuation(token_ids=token_ids(piece))


def _names(kind: type[Command]) -> list[str]:
    return [one.name for one in fields(kind) if one.name != "command_id"]


def _read_open(_: int, message: pb.OpenTree) -> OpenCall:
    prompt = prompt_of(message.prompt) if message.HasField("prompt") else None
    opening = OpenTree(prompt, **given(message, ["seed", "cache_salt"]))
    return OpenCall(opening, limits_of(message.limits))


def _read_decode(command_id: int, message: pb.DecodeNodes) -> Decode:
    return Decode(
        command_id,
        tuple(message.nodes),
        cast(Greedy | Sample, strategy_of(message)),
        options_of(message.options),
        tuple(message.step),
        tuple(message.seeds) or None,
    )


def _read_extend(command_id: int, message: pb.ExtendNode) -> Extend:
    piece = message.continuation
    if piece.WhichOneof("form") == "text":
        return Extend(command_id, message.node, piece.text)
    return Extend(command_id, message.node, tuple(piece.token_ids.ids))


def _read_score(command_id: int, message: pb.ScoreNodes) -> ScoreNodes:
    return ScoreNodes(
        command_id,
        tuple(message.nodes),
        tuple(piece_of("continuations", i, piece) for i, piece in enumerate(message.continuations)),
        message.top_logprobs,
        message.priority,
    )


def _read_import(command_id: int, message: pb.ImportNodes) -> Import:
    paths = []
    for place, path in enumerate(message.paths):
        try:
            paths.append(path_of(path))
        except InvalidRequestError as error:
            name = f"paths[{place}].{error.field}"
            raise InvalidRequestError(f"paths[{place}].{error}", field=name, limit=error.limit) from None
    return Import(command_id, tuple(paths), tuple(sorted(message.parents.items())))


def _plain(kind: type[T]) -> Callable[[int, Any], T]:
    names = _names(cast(type[Command], kind))

    def read(command_id: int, message: Any) -> T:
        values = given(message, names)
        return kind(command_id, **{name: _value(name, value) for name, value in values.items()})  # type: ignore[call-arg]

    return read


def _value(name: str, value: Any) -> Any:
    """A repeated field as a tuple; seeds that are none are not given."""
    if isinstance(value, (int, float, str)):
        return value
    return tuple(value) or (None if name == "seeds" else ())


_READERS: Mapping[str, Callable[[int, Any], SessionCall]] = {
    "open_tree": _read_open,
    "resume_tree": lambda _, message: ResumeCall(message.tree, message.secret),
    "close_tree": lambda _, message: CloseCall(),
    "decode_nodes": _read_decode,
    "extend_node": _read_extend,
    "score_nodes": _read_score,
    "import_nodes": _read_import,
    **{action: _plain(kind) for kind, action in _PLAIN.items()},
}
