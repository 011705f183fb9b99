"""Commands of tree sessions that nobody should send: wrong, random, damaged. Equal for equal seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.hostile_random import any_field, damage, fill
from benchmarks.hostile_wrong import wrong_decode
from forkdecode.results import ServedModel
from forkdecode.rpc.v1 import decode_pb2 as pb

ACTIONS = tuple(field.name for field in pb.TreeCommand.DESCRIPTOR.oneofs_by_name["action"].fields)
_BEGIN_OR_END = ("open_tree", "resume_tree", "close_tree")
_FAR = 2**40
"""A node that no session of an attack comes to."""
_HUGE = (2**31, 2**32 - 1)


@dataclass(frozen=True, slots=True)
class TreeAttack:
    """Bytes for a session that has begun. number: the command's id, None where there may be none.
    refused: it must not be accepted; path: the field that must then be named, or "" when any may be."""

    kind: str
    data: bytes
    number: int | None
    refused: bool = False
    path: str = ""


def tree_attacks(rng: random.Random, model: ServedModel, first: int, count: int) -> Iterator[TreeAttack]:
    """`count` commands of all kinds, their ids from `first` on."""
    kinds, weights = zip(*_KINDS, strict=True)
    for number, make in enumerate(rng.choices(kinds, weights, k=count), first):
        yield make(rng, model, number)


def plain(rng: random.Random, model: ServedModel, number: int) -> pb.TreeCommand:
    """A command that may be carried out, on a node that may be there, of few tokens."""
    command, node = pb.TreeCommand(command_id=number), rng.choice((0, 0, 1, 2, 5))
    token = pb.Continuation(token_ids=pb.TokenIds(ids=[rng.randrange(model.vocab_size)]))
    match rng.randrange(9):
        case 0:
            command.fork_node.MergeFrom(pb.ForkNode(node=node, n=rng.randint(1, 3)))
        case 1:
            command.extend_node.MergeFrom(pb.ExtendNode(node=node, continuation=token))
        case 2:
            command.score_nodes.MergeFrom(pb.ScoreNodes(nodes=[node], continuations=[token]))
        case 3:
            command.truncate_node.MergeFrom(pb.TruncateNode(node=node, num_tokens=rng.randint(1, 9)))
        case 4:
            rng.choice((command.stop_nodes, command.unpin_nodes)).nodes.append(node)
        case 5:
            rng.choice((command.finish_nodes, command.prune_nodes)).nodes.append(max(1, node))
        case 6:
            command.pin_nodes.MergeFrom(pb.PinNodes(nodes=[node], ttl=rng.choice((0.0, 0.01, 1e9))))
        case _:
            command.decode_nodes.nodes.append(node)
            command.decode_nodes.sample.n = rng.randint(1, 3)
            command.decode_nodes.options.max_tokens = rng.randint(1, 12)
    return command


# -- kinds ----------------------------------------------------------------------------------------------


def _plain(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    return TreeAttack("plain", plain(rng, model, number).SerializeToString(), number)


def _wrong(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    """One field that is wrong in a command that is right otherwise."""
    command = pb.TreeCommand(command_id=number)
    if rng.random() < 0.5:
        path = _wrong_decode(rng, model, command.decode_nodes)
    else:
        path = rng.choice(list(_WRONG))
        action = path.partition(".")[0]
        _WRONG[path](rng, model, getattr(command, action))
    return TreeAttack("wrong value", command.SerializeToString(), number, True, path)


def _wrong_decode(rng: random.Random, model: ServedModel, decode: pb.DecodeNodes) -> str:
    """One option or setting of samples that is wrong in an ordinary request is so here."""
    while True:
        request = pb.DecodeRequest(prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[1])))
        request.options.max_tokens = 3
        request, path = wrong_decode(rng, model, request)
        if path.startswith(("options.", "sample.")):
            decode.MergeFrom(pb.DecodeNodes(nodes=[0], options=request.options))
            if request.HasField("sample"):
                decode.sample.CopyFrom(request.sample)
            return f"decode_nodes.{path}"


def _nodes(rng: random.Random, model: ServedModel, action: Any) -> None:
    action.nodes.extend(rng.choice(([], [_FAR], [0, _FAR], [0, 0], [2**64 - 1], [1] * 65_537)))


def _piece(rng: random.Random, model: ServedModel) -> pb.Continuation:
    outside = rng.choice((model.vocab_size, model.vocab_size + 1, 2**31 - 1, *_HUGE))
    ids = rng.choice(([], [outside], [1, 1, outside]))
    wrong = (pb.Continuation(), pb.Continuation(text=""), pb.Continuation(token_ids=pb.TokenIds(ids=ids)))
    return rng.choice(wrong)


def _path(rng: random.Random, model: ServedModel, action: Any) -> None:
    """A record that no session exported."""
    right: dict[str, Any] = {"model": model.name, "node": 1, "token_ids": [1, 2], "start": 1, "lineage": 3}
    wrong: dict[str, tuple[Any, ...]] = {
        "model": ("", "another"),
        "token_ids": ([], [model.vocab_size], [2**32 - 1], [1] * (model.max_positions + 1)),
        "start": (3, *_HUGE),
        "text": ("not that of the tokens",),
        "next_seed": (2**33, 2**64 - 1),
        "finish_reason": (6, 99, -1),
        "cumulative_logprob": (math.nan, math.inf),
        "logprobs": ([0.0] * 7, [math.nan]),
        "constraint_start": (1, 2**32 - 1),
    }
    name = rng.choice(list(wrong))
    action.paths.append(pb.NodePath(**(right | {name: rng.choice(wrong[name])})))


def _twice(rng: random.Random, model: ServedModel, action: Any) -> None:
    path = pb.NodePath(model=model.name, node=1, token_ids=[1], lineage=3)
    action.paths.extend([path, path] if rng.random() < 0.5 else [])


def _parents(rng: random.Random, model: ServedModel, action: Any) -> None:
    path = pb.NodePath(model=model.name, node=1, parent=9, token_ids=[1, 2], start=1, lineage=3)
    action.paths.append(path)
    action.parents[rng.choice((9, 2**63))] = rng.choice((_FAR, 2**64 - 1))


_WRONG: dict[str, Callable[[random.Random, ServedModel, Any], Any]] = {
    "fork_node.node": lambda r, m, a: a.MergeFrom(pb.ForkNode(node=_FAR, n=1)),
    "fork_node.n": lambda r, m, a: a.MergeFrom(pb.ForkNode(n=r.choice((0, 65_537, *_HUGE)))),
    "fork_node.seeds": lambda r, m, a: a.MergeFrom(pb.ForkNode(n=2, seeds=[1] * r.choice((1, 3)))),
    "decode_nodes.nodes": _nodes,
    "decode_nodes.step": lambda r, m, a: a.MergeFrom(
        pb.DecodeNodes(nodes=[0], step=r.choice(([""], ["a", ""], ["x" * 4097])))
    ),
    "decode_nodes.seeds": lambda r, m, a: a.MergeFrom(
        pb.DecodeNodes(nodes=[0], sample=pb.Sample(), seeds=[1, 2])
    ),
    "extend_node.node": lambda r, m, a: a.MergeFrom(
        pb.ExtendNode(node=_FAR, continuation=pb.Continuation(token_ids=pb.TokenIds(ids=[1])))
    ),
    "extend_node.continuation": lambda r, m, a: a.MergeFrom(pb.ExtendNode(continuation=_piece(r, m))),
    "score_nodes.continuations": lambda r, m, a: a.MergeFrom(
        pb.ScoreNodes(nodes=[0], continuations=[_piece(r, m)])
    ),
    "score_nodes.top_logprobs": lambda r, m, a: a.MergeFrom(
        pb.ScoreNodes(nodes=[0], top_logprobs=r.choice((1025, *_HUGE)))
    ),
    "truncate_node.node": lambda r, m, a: a.MergeFrom(pb.TruncateNode(node=_FAR, num_tokens=1)),
    "truncate_node.num_tokens": lambda r, m, a: a.MergeFrom(
        pb.TruncateNode(num_tokens=r.choice((0, 2**31 - 1, *_HUGE)))
    ),
    "pin_nodes.ttl": lambda r, m, a: a.MergeFrom(
        pb.PinNodes(nodes=[0], ttl=r.choice((math.nan, math.inf, -1.0, 1e300)))
    ),
    **{
        f"{kind}_nodes.nodes": _nodes
        for kind in ("score", "prune", "pin", "unpin", "stop", "finish", "export")
    },
    "import_nodes.paths": _twice,
    "import_nodes.parents": _parents,
}


def _record(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    command = pb.TreeCommand(command_id=number)
    _path(rng, model, command.import_nodes)
    return TreeAttack("wrong record", command.SerializeToString(), number, True)


def _random(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    """Any values in any fields of any command; most decode few tokens."""
    command, action = pb.TreeCommand(), rng.choice(ACTIONS)
    getattr(command, action).SetInParent()
    fill(rng, getattr(command, action), model)
    command.command_id = number
    if action == "decode_nodes" and rng.random() < 0.9:
        command.decode_nodes.options.max_tokens = rng.randint(1, 3)
    refused = action in _BEGIN_OR_END[:2]
    return TreeAttack("random command", command.SerializeToString(), number, refused)


def _mutated(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    """A command, damaged: whose id it bears, or whether it is one, nobody knows."""
    source = rng.choice((_plain, _wrong, _random, _record))
    data = bytearray(source(rng, model, number).data)
    for _ in range(rng.randint(1, 4)):
        damage(rng, data)
    return TreeAttack("damaged command", bytes(data), None)


def _garbage(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    return TreeAttack("garbage", rng.randbytes(rng.choice((1, 2, 8, 50, 400))), None)


def _unknown(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    """A field that no version has."""
    command = plain(rng, model, number)
    unknown = rng.choice((50, 1000, 2**29 - 1))
    name = command.WhichOneof("action")
    prefix, message = rng.choice((("", command), (f"{name}.", getattr(command, str(name)))))
    message.MergeFromString(any_field(rng, unknown))
    return TreeAttack("unknown field", command.SerializeToString(), number, True, f"{prefix}{unknown}")


def _none(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    return TreeAttack(
        "no action", pb.TreeCommand(command_id=number).SerializeToString(), number, True, "action"
    )


def _huge(rng: random.Random, model: ServedModel, number: int) -> TreeAttack:
    """Far too much of something."""
    command, size = pb.TreeCommand(command_id=number), rng.choice((2**17, 2**19))
    match rng.randrange(4):
        case 0:
            command.decode_nodes.MergeFrom(pb.DecodeNodes(nodes=[0], step=["a"] * size))
        case 1:
            piece = pb.Continuation(token_ids=pb.TokenIds(ids=[1]))
            command.score_nodes.MergeFrom(pb.ScoreNodes(nodes=[0], continuations=[piece] * (size // 4)))
        case 2:
            command.extend_node.continuation.token_ids.ids.extend([1] * size)
        case _:
            command.fork_node.MergeFrom(pb.ForkNode(n=size, seeds=[1] * size))
    return TreeAttack("huge", command.SerializeToString(), number, True)


_KINDS: tuple[tuple[Callable[[random.Random, ServedModel, int], TreeAttack], float], ...] = (
    (_plain, 30),
    (_wrong, 30),
    (_record, 6),
    (_random, 20),
    (_unknown, 5),
    (_none, 1),
    (_mutated, 2),
    (_garbage, 0.5),
    (_huge, 0.5),
)
