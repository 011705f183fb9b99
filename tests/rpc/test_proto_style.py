"""The protocol keeps to its style: all is documented, named and numbered as the convention has it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

PROTO = Path(__file__).parents[2] / "proto"
SOURCES = [str(path.relative_to(PROTO)) for path in sorted(PROTO.rglob("*.proto"))]
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
PASCAL = re.compile(r"([A-Z][a-z0-9]*)+")
WIDTH = 120

# Field numbers in descriptor.proto: what a path of SourceCodeInfo is made of.
MESSAGES, ENUMS, SERVICES = 4, 5, 6
FIELDS, NESTED, INNER_ENUMS, VALUES, METHODS = 2, 3, 4, 2, 2


@dataclass(frozen=True)
class Named:
    """Something in the protocol that has a name, and the comment before or behind it."""

    kind: str
    name: str
    comment: str
    item: Any


def compiled(source: Path, root: Path) -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a file, with its comments."""
    command = [
        "-m",
        "grpc_tools.protoc",
        f"-I{root}",
        "--include_source_info",
        "--descriptor_set_out=/dev/stdout",
    ]
    done = subprocess.run([sys.executable, *command, str(source)], check=True, capture_output=True)
    return descriptor_pb2.FileDescriptorSet.FromString(done.stdout).file[0]


class Walk:
    """All that has a name in one file."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        self._comments = {
            tuple(place.path): (place.leading_comments + place.trailing_comments).strip()
            for place in file.source_code_info.location
        }
        self.found = [*self._messages(file.message_type, (MESSAGES,)), *self._enums(file.enum_type, (ENUMS,))]
        for i, service in enumerate(file.service):
            self.found.append(self._named("service", service, (SERVICES, i)))
            methods = enumerate(service.method)
            self.found.extend(self._named("method", m, (SERVICES, i, METHODS, j)) for j, m in methods)

    def _named(self, kind: str, item: Any, path: tuple[int, ...]) -> Named:
        return Named(kind, item.name, self._comments.get(path, ""), item)

    def _messages(self, messages: Any, prefix: tuple[int, ...]) -> Iterator[Named]:
        for i, message in enumerate(messages):
            if message.options.map_entry:
                continue
            path = (*prefix, i)
            yield self._named("message", message, path)
            for j, field in enumerate(message.field):
                yield self._named("field", field, (*path, FIELDS, j))
            yield from self._messages(message.nested_type, (*path, NESTED))
            yield from self._enums(message.enum_type, (*path, INNER_ENUMS))

    def _enums(self, enums: Any, prefix: tuple[int, ...]) -> Iterator[Named]:
        for i, enum in enumerate(enums):
            yield self._named("enum", enum, (*prefix, i))
            for j, value in enumerate(enum.value):
                yield self._named("value", value, (*prefix, i, VALUES, j))


def problems(file: descriptor_pb2.FileDescriptorProto) -> list[str]:
    """What is wrong with a file, in words."""
    found = []
    if file.package.split(".") != list(Path(file.name).parent.parts):
        found.append(f"package {file.package} is not that of its path")
    for one in Walk(file).found:
        if not one.comment:
            found.append(f"{one.kind} {one.name} has no comment")
        elif not re.search(r"[.?!)]$", one.comment):
            found.append(f"the comment of {one.kind} {one.name} is no sentence")
        elif one.kind != "value" and len(one.comment.split()) < 2:
            found.append(f"the comment of {one.kind} {one.name} says nothing")
        found.extend(_of_kind(one))
    return found


def _of_kind(one: Named) -> Iterator[str]:
    pattern = {"field": SNAKE, "value": re.compile(r"[A-Z][A-Z0-9_]*")}.get(one.kind, PASCAL)
    if not pattern.fullmatch(one.name):
        yield f"{one.kind} {one.name} is misnamed"
    if one.kind == "service" and not one.name.endswith("Service"):
        yield f"service {one.name} is not called a service"
    if one.kind == "message":
        yield from _numbers(one)
        for oneof in one.item.oneof_decl:
            if not SNAKE.fullmatch(oneof.name.lstrip("_")):
                yield f"oneof {oneof.name} is misnamed"
    if one.kind == "enum":
        yield from _values(one)
    if one.kind == "method":
        yield from _types(one)


def _numbers(message: Named) -> Iterator[str]:
    """Numbers are 1, 2, 3 ... but for reserved ones."""
    taken = [field.number for field in message.item.field]
    reserved = {n for r in message.item.reserved_range for n in range(r.start, r.end)}
    if sorted({*taken, *reserved}) != list(range(1, len({*taken, *reserved}) + 1)):
        yield f"the numbers of {message.name} have gaps that are not reserved"


def _values(enum: Named) -> Iterator[str]:
    prefix = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", enum.name).upper()
    for value in enum.item.value:
        if not value.name.startswith(f"{prefix}_"):
            yield f"value {value.name} lacks its enum's name"
    first = enum.item.value[0]
    if (first.number, first.name) != (0, f"{prefix}_UNSPECIFIED"):
        yield f"{enum.name} does not begin with {prefix}_UNSPECIFIED"
    if sorted(value.number for value in enum.item.value) != list(range(len(enum.item.value))):
        yield f"the numbers of {enum.name} have gaps"


def _types(method: Named) -> Iterator[str]:
    request = method.item.input_type.rpartition(".")[2]
    response = method.item.output_type.rpartition(".")[2]
    if method.item.client_streaming:
        # Commands go in and events come out of something that has a name of its own.
        subject = request.removesuffix("Command")
        if (request, response) != (f"{subject}Command", f"{subject}Event"):
            yield f"the messages of {method.name} are no commands and events"
        return
    expected = f"{method.name}{'Event' if method.item.server_streaming else 'Response'}"
    if (request, response) != (f"{method.name}Request", expected):
        yield f"the messages of {method.name} are misnamed"


@pytest.mark.parametrize("name", SOURCES)
def test_style(name: str) -> None:
    file = compiled(PROTO / name, PROTO)
    assert file.syntax == "proto3"
    assert not problems(file)


@pytest.mark.parametrize("name", SOURCES)
def test_lines_are_short_and_clean(name: str) -> None:
    for line in (PROTO / name).read_text().splitlines():
        assert len(line) <= WIDTH
        assert line == line.rstrip()


BAD = """
syntax = "proto3";
package wrong.v1;
service Things {
  rpc Get(Thing) returns (Thing);
  rpc Steer(stream Thing) returns (stream Thing);
}
// No sentence
message Thing {
  string BadName = 1;
  // Which.
  string good = 3;
}
// An enum.
enum SomeColour {
  // The first.
  RED = 0;
  // After a gap.
  SOME_COLOUR_BLUE = 2;
}
"""


def test_the_check_finds_what_is_wrong(tmp_path: Path) -> None:
    source = tmp_path / "right" / "v1" / "thing.proto"
    source.parent.mkdir(parents=True)
    source.write_text(BAD)
    assert set(problems(compiled(source, tmp_path))) == {
        "package wrong.v1 is not that of its path",
        "service Things has no comment",
        "service Things is not called a service",
        "method Get has no comment",
        "the messages of Get are misnamed",
        "method Steer has no comment",
        "the messages of Steer are no commands and events",
        "the comment of message Thing is no sentence",
        "the comment of field good says nothing",
        "the numbers of Thing have gaps that are not reserved",
        "field BadName has no comment",
        "field BadName is misnamed",
        "value RED lacks its enum's name",
        "SomeColour does not begin with SOME_COLOUR_UNSPECIFIED",
        "the numbers of SomeColour have gaps",
    }
