"""What of a request is set, what of it is unknown, and where a named option stands in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from forkdecode.errors import invalid
from forkdecode.rpc.v1 import decode_pb2 as pb

RENAMED = {"logprobs": "return_logprobs"}
"""Options whose field in the protocol has another name than in the SDK."""

MAX_ENTRIES = 65_536
"""Messages in a list: each is looked into."""
_OPTION_PATHS = frozenset({"forced_prefix", *pb.Options.DESCRIPTOR.fields_by_name})


def given(message: Message, names: Iterable[str]) -> dict[str, Any]:
    """The fields of `message` among `names` that say something: of optional ones those that are set."""
    fields = message.DESCRIPTOR.fields_by_name
    return {
        name: getattr(message, name)
        for name in names
        if not fields[name].has_presence or message.HasField(name)
    }


def named(field: str, kind: Any, known: Mapping[Any, Any], number: int) -> Any:
    """What an enum's number stands for. Raises InvalidRequestError for one that is unknown."""
    for value, its_number in known.items():
        if its_number == number:
            return value
    raise invalid(field, f"{number} is no {kind.DESCRIPTOR.name}", ", ".join(map(kind.Name, known.values())))


def check_known(message: Message) -> None:
    """Raises InvalidRequestError, whose field is a path that ends in a number, for a message that holds
    a field which this version does not know, at any depth; or whose field is a list of messages, none of
    which is looked into, that is too long."""
    path = _unknown(message, "")
    if path is not None:
        allowed = f"the fields of {message.DESCRIPTOR.full_name} that this server knows"
        raise invalid(path, "is unknown to this server: its number, or its type", allowed)


def _unknown(message: Message, prefix: str) -> str | None:
    unknown = UnknownFieldSet(message)
    if len(unknown):
        return f"{prefix}{unknown[0].field_number}"
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        path = f"{prefix}{field.name}"
        if not field.is_repeated:
            found = _unknown(value, f"{path}.")
        elif len(value) > MAX_ENTRIES:
            raise invalid(path, f"has {len(value)} entries", f"at most {MAX_ENTRIES}")
        else:
            each = (_unknown(item, f"{path}[{i}].") for i, item in enumerate(value))
            found = next((one for one in each if one is not None), None)
        if found is not None:
            return found
    return None


def field_path(name: str, request: Message | None) -> str:
    """Where in `request` the field stands that the SDK calls `name`: "top_p" of a Sample is
    "sample.sampling.top_p". A name that is not found, or a path already, stays as it is; "" for a limit of a
    session, which a command is beyond."""
    if isinstance(request, pb.TreeCommand):
        action = request.WhichOneof("action")
        return name if action is None else _command_path(name, action, getattr(request, action))
    return _decode_path(name, request) if isinstance(request, pb.DecodeRequest) else name


def _command_path(name: str, action: str, message: Message) -> str:
    if name.startswith(f"{action}.") or name == "command_id":
        return name
    if isinstance(message, pb.DecodeNodes):
        path = _decode_path(name, message)
        known = path != name or name in message.DESCRIPTOR.fields_by_name
        return f"{action}.{path}" if known else name
    if isinstance(message, pb.OpenTree) and name in pb.TreeLimits.DESCRIPTOR.fields_by_name:
        return f"{action}.limits.{name}"
    if name in pb.TreeLimits.DESCRIPTOR.fields_by_name:
        return ""  # of the session, and nowhere in this command
    return f"{action}.{name}" if name.partition("[")[0] in message.DESCRIPTOR.fields_by_name else name


def _decode_path(name: str, request: pb.DecodeRequest | pb.DecodeNodes) -> str:
    if name == "chat":
        return "prompt.chat"
    found = _strategy_path(name, request)
    if found is not None or name in request.DESCRIPTOR.fields_by_name:
        return found or name
    option = RENAMED.get(name, name)
    if option == "forced_prefix":
        option = request.options.WhichOneof("forced_prefix") or option
    if option.partition(".")[0] == "constraint":
        return _constraint_path(option.partition(".")[2], request.options.constraint)
    return f"options.{option}" if option in _OPTION_PATHS else name


def _constraint_path(part: str, constraint: pb.Constraint) -> str:
    """part: what of it the SDK names. Grammars are one text; a catalogue has fields of its own."""
    kind = constraint.WhichOneof("kind")
    if kind is None:
        return "options.constraint"
    own = kind == "catalogue" and part in pb.FromCatalogue.DESCRIPTOR.fields_by_name
    return f"options.constraint.{kind}.{part}" if own else f"options.constraint.{kind}"


def _strategy_path(name: str, request: pb.DecodeRequest | pb.DecodeNodes) -> str | None:
    strategy = request.WhichOneof("strategy")
    if strategy is None:
        return None
    names = type(getattr(request, strategy)).DESCRIPTOR.fields_by_name
    if name in names:
        return f"{strategy}.{name}"
    sampled = "sampling" in names and name in pb.Sampling.DESCRIPTOR.fields_by_name
    if sampled:
        return f"{strategy}.sampling.{name}"
    return _scorer_path(name, strategy, getattr(request, strategy)) if "scorer" in names else None


def _scorer_path(name: str, strategy: str, message: pb.Beam | pb.DiverseBeam) -> str | None:
    kind = message.scorer.WhichOneof("kind")
    if kind is None or name not in type(getattr(message.scorer, kind)).DESCRIPTOR.fields_by_name:
        return None
    return f"{strategy}.scorer.{kind}.{name}"
