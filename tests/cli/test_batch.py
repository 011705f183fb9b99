"""`forkdecode decode --input`: results as they finish, bad lines reported, resumable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode import LLM, Beam, Greedy, Sample
from forkdecode.cli import batch, engine
from forkdecode.cli.batch import BadLine, RequestFile
from forkdecode.cli.requests import Defaults, Request, parse_line
from forkdecode.errors import InvalidRequestError
from forkdecode.types import BestOf, Options
from tests.cli.conftest import Cli, Ran

REQUESTS: list[dict[str, Any]] = [
    {"id": "a", "prompt": "hello", "max_tokens": 6},
    {"id": 2, "prompt": "world", "strategy": "beam", "width": 3, "max_tokens": 6, "logit_bias": {"5": 2.0}},
    {
        "messages": [{"role": "user", "content": "hello"}],
        "strategy": "sample",
        "n": 2,
        "seed": 3,
        "max_tokens": 6,
    },
    {"prompt": [1, 2, 3], "strategy": "best-of", "best_of": 3, "seed": 1, "max_tokens": 6},
    {"prompt": "hello", "chat": True, "max_tokens": 6},
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


@pytest.fixture
def run(cli: Cli, files: tuple[Path, Path], model: str) -> Any:
    def call(*flags: str) -> Ran:
        source, output = files
        return cli("decode", "--input", str(source), "--output", str(output), "--model", model, *flags)

    return call


def write(path: Path, *lines: Any) -> None:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))


def read(path: Path) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({r["line"] for r in records}) == len(records)
    return {record["line"]: record for record in records}


def test_each_line_has_its_own_strategy_and_options(run: Any, files: tuple[Path, Path], model: str) -> None:
    write(files[0], *REQUESTS)
    ran = run("--dtype", "float32")
    assert ran.code == 0
    assert "5 finished (8 candidates" in ran.err
    records = read(files[1])
    assert [records[i]["id"] for i in range(1, 6)] == ["a", 2, None, None, None]
    with LLM(model, dtype="float32") as llm:
        expected = [
            llm.decode("hello", Greedy(), max_tokens=6),
            llm.decode("world", Beam(width=3), max_tokens=6, logit_bias={5: 2.0}),
            llm.decode([{"role": "user", "content": "hello"}], Sample(n=2, seed=3), max_tokens=6),
            llm.decode([1, 2, 3], BestOf(best_of=3, seed=1), max_tokens=6),
            llm.decode("hello", chat=True, max_tokens=6),
        ]
    for line, result in enumerate(expected, 1):
        texts = [candidate["text"] for candidate in records[line]["candidates"]]
        assert texts == [candidate.text for candidate in result.candidates]


def test_bad_lines_are_reported_with_their_numbers_and_stop_nothing(
    run: Any, files: tuple[Path, Path]
) -> None:
    bad = [
        ("not json", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ({"prompt": "x", "messages": []}, "prompt: both prompt and messages are given, or neither"),
        ({"strategy": "beam"}, "prompt: both prompt and messages are given, or neither"),
        ({"prompt": "x", "width": 3}, "width: is not an option of strategy 'greedy'"),
        ({"prompt": "x", "strategy": ["beam"]}, "strategy: \\['beam'\\] is unknown"),
        ({"prompt": "x", "max_tokens": "many"}, "max_tokens: 'many' is not an integer"),
        ({"prompt": "x", "colour": "red"}, "colour: is unknown"),
        ({"prompt": "x", "id": 1.5}, "id: 1.5 is not usable"),
        ({"prompt": "x", "chat": "yes"}, "chat: 'yes' is not a boolean"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias: .* has a key that is not a token id"),
        ('{"prompt": "x", "temperature": NaN}', "NaN is not a JSON number"),
        ({"prompt": "\ud800"}, "prompt: holds a lone surrogate"),
        ({"prompt": [100000]}, "prompt: 100000 is not a token id"),
        ({"prompt": "x", "max_tokens": 100000}, "max_tokens: 100000"),
        ({"messages": [{"role": "user"}]}, "has no content"),
        ("[" * 100_000, "is not JSON"),
        ({"prompt": ["hello", "world"]}, "prompt: .* is not usable; allowed: a text or a list of token ids"),
        ({"prompt": [[1, 2], [3]]}, "prompt: .* is not usable"),
        ({"prompt": []}, "prompt: .* is not usable"),
        ({"prompt": [True]}, "prompt: .* is not usable"),
        ({"messages": []}, "messages: .* is not usable"),
        ({"messages": ["hi"]}, "messages: .* is not usable"),
        ({"messages": [1, 2]}, "messages: .* is not usable"),
        ({"prompt": "x", "id": "\ud800"}, "id: .* is not usable"),
        ({"prompt": "x", "\ud800": 1}, "line: holds a lone surrogate"),
    ]
    write(files[0], REQUESTS[0], "", *(line for line, _ in bad), REQUESTS[1])
    ran = run()
    assert ran.code == 1
    assert "2 finished (4 candidates, " in ran.err
    records = read(files[1])
    for number, (_, message) in enumerate(bad, 3):
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(records[number]["error"]["message"])
        assert f"line {number}: " in ran.err
    assert "candidates" in records[1]
    assert "candidates" in records[3 + len(bad)]


def test_a_bad_line_keeps_its_id(run: Any, files: tuple[Path, Path]) -> None:
    lines = (
        {"id": "x", "prompt": "a", "width": -1},
        {"id": 7, "strategy": "no"},
        {"id": True, "prompt": "a"},
    )
    write(files[0], *lines, "[1]", "{")
    assert run().code == 1
    records = read(files[1])
    assert [records[i]["id"] for i in range(1, 6)] == ["x", 7, None, None, None]


def test_a_byte_order_mark_is_no_part_of_a_line(files: tuple[Path, Path]) -> None:
    found = []
    for encoding in ("utf-8", "utf-8-sig"):
        files[0].write_text("\n".join(map(json.dumps, REQUESTS)) + "\n{", encoding)
        found.append(list(RequestFile(files[0], Defaults({}), "m")))
    assert found[0][:-1] == found[1][:-1]
    assert [type(item) for item in found[1]] == [Request] * len(REQUESTS) + [BadLine]


def test_bytes_that_are_no_text_are_a_bad_line(run: Any, files: tuple[Path, Path]) -> None:
    files[0].write_bytes(b'{"prompt": "\xff"}\n' + json.dumps(REQUESTS[0]).encode())
    assert run().code == 1
    records = read(files[1])
    assert "is not JSON" in records[1]["error"]["message"]
    assert "candidates" in records[2]


def test_a_second_run_does_only_what_is_missing(
    run: Any, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(files[0], *REQUESTS)
    assert run("--dtype", "float32").code == 0
    whole = read(files[1])
    # as an interrupt leaves it: two lines done, a third cut off in the middle
    lines = files[1].read_text().splitlines(keepends=True)
    files[1].write_text("".join(lines[:2]) + lines[2][:40])
    kept = {json.loads(line)["line"] for line in lines[:2]}
    ran = run("--dtype", "float32")
    assert ran.code == 0
    assert "3 finished" in ran.err
    assert "2 finished earlier" in ran.err
    again = read(files[1])
    assert files[1].read_text().startswith("".join(lines[:2]))
    for line, record in whole.items():
        same = ("request_id", "usage") if line not in kept else ()
        assert {k: v for k, v in again[line].items() if k not in same} == {
            k: v for k, v in record.items() if k not in same
        }

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model is not needed")

    monkeypatch.setattr(engine, "open_async_llm", forbidden)
    assert "0 finished (0 candidates, 0 tokens), 5 finished earlier, of 5" in run("--dtype", "float32").err


def test_failed_lines_are_tried_again(run: Any, files: tuple[Path, Path]) -> None:
    write(files[0], REQUESTS[0], {"prompt": "x", "width": 2})
    assert run().code == 1
    write(files[0], REQUESTS[0], {"prompt": "x", "strategy": "beam", "width": 2, "max_tokens": 4})
    ran = run()
    assert ran.code == 0
    assert "1 finished earlier" in ran.err
    assert "candidates" in read(files[1])[2]


def test_results_of_other_requests_are_never_mixed_or_lost(run: Any, files: tuple[Path, Path]) -> None:
    write(files[0], *REQUESTS[:2])
    assert run().code == 0
    before = files[1].read_text()
    ran = run("--min-tokens", "2")
    assert (ran.code, files[1].read_text()) == (2, before)
    assert "its result for line 1 is of another request or of other options" in ran.err
    write(files[0], REQUESTS[0])
    ran = run()
    assert (ran.code, files[1].read_text()) == (2, before)
    assert "has results of lines that the input does not have" in ran.err
    assert run("--overwrite", "--min-tokens", "2").code == 0
    assert set(read(files[1])) == {1}
    write(files[1], {"someone": "else's"})
    ran = run()
    assert (ran.code, json.loads(files[1].read_text())) == (2, {"someone": "else's"})
    assert "line 1 of the file is not a result of this command" in ran.err


def test_the_input_is_never_overwritten(cli: Cli, files: tuple[Path, Path], model: str) -> None:
    write(files[0], REQUESTS[0])
    ran = cli("decode", "--input", str(files[0]), "--output", str(files[0]), "--overwrite", "--model", model)
    assert ran.code == 2
    assert json.loads(files[0].read_text()) == REQUESTS[0]


def test_more_lines_than_are_in_flight(
    run: Any, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "IN_FLIGHT", 3)
    write(files[0], *({"prompt": [i], "max_tokens": 2} for i in range(20)))
    assert run().code == 0
    assert set(read(files[1])) == set(range(1, 21))


def test_flags_are_defaults_of_the_lines() -> None:
    defaults = Defaults({"strategy": "beam", "width": 5, "max_tokens": 7, "top_k": 3}, chat=True)
    with pytest.raises(InvalidRequestError, match="top_k: is not an option of strategy 'beam'"):
        defaults.build()
    defaults = Defaults({"strategy": "beam", "width": 5, "max_tokens": 7}, chat=True)
    assert defaults.build() == (Beam(width=5), Options(max_tokens=7))
    assert defaults.build({"width": 2, "min_tokens": 1}) == (
        Beam(width=2),
        Options(max_tokens=7, min_tokens=1),
    )
    assert defaults.build({"strategy": "sample"}) == (Sample(), Options(max_tokens=7))
    shown = Defaults({"strategy": "beam", "update_beams": 3})
    assert shown.build() == (Beam(), Options(update_beams=3))
    assert shown.build({"strategy": "sample"}) == (Sample(), Options())
    line = parse_line(1, b'{"prompt": "x"}', defaults, "m")
    assert (line.strategy, line.chat) == (Beam(width=5), True)
    assert parse_line(1, b'{"prompt": [1]}', defaults, "m").chat is False


def test_a_digest_is_of_all_that_decides_a_result() -> None:
    def digest(text: str, model: str = "m", **flags: Any) -> str:
        return parse_line(1, text.encode(), Defaults(flags), model).digest

    base = digest('{"prompt": "x", "max_tokens": 3}')
    assert digest('{"max_tokens": 3, "id": 9, "prompt": "x"}') == base
    assert digest('{"prompt": "x"}', max_tokens=3) == base
    others = [
        digest('{"prompt": "y", "max_tokens": 3}'),
        digest('{"prompt": "x", "max_tokens": 4}'),
        digest('{"prompt": "x", "max_tokens": 3, "strategy": "beam"}'),
        digest('{"prompt": "x", "max_tokens": 3, "chat": true}'),
        digest('{"prompt": "x", "max_tokens": 3}', model="n"),
    ]
    assert len({base, *others}) == 6
