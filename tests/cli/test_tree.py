"""`forkdecode tree show` on what Tree.save, Tree.export and journals leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode.calls.picture import Picture, PictureNode
from forkdecode.types import Beam, Sample
from tests.calls.picture.browser import Parsed
from tests.cli.conftest import Cli
from tests.engine.journals import journaled
from tests.scheduler.engines import request, run


def shown(path: Path) -> Any:
    return Parsed(path.read_text("ascii")).data


def exported(node: int, parent: int | None, tokens: list[int], **more: Any) -> dict[str, Any]:
    """As Tree.export's records to_json()."""
    own = {"model": "m", "start": 0, "text": f"<{node}>", "lineage": 1}
    return {**own, "node": node, "parent": parent, "token_ids": tokens, **more}


def test_a_saved_tree(cli: Cli, tmp_path: Path) -> None:
    saved = Picture("t", ("a", "b"), (PictureNode("0", None, "prompt", "</script>", 1),))
    file = tmp_path / "session.fd"
    file.write_text(json.dumps(saved.to_json()))
    ran = cli("tree", "show", str(file))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == f"{file}.html: 1 nodes, 2 steps\n"
    assert shown(tmp_path / "session.fd.html") == json.loads(json.dumps(saved.to_json()))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("lines", [False, True])
def test_exported_nodes(cli: Cli, tmp_path: Path, lines: bool, encoding: str) -> None:
    nodes = [
        exported(4, 2, [1, 2, 3, 4], start=3, finish_reason="eos", cumulative_logprob=-1.5),
        exported(0, None, [1, 2]),
        exported(2, 0, [1, 2, 3], start=2, finish_reason="stop"),
        exported(7, 5, [1, 2, 9], start=2),
        exported(8, None, [3]),
    ]
    file = tmp_path / "nodes.json"
    file.write_text("\n".join(map(json.dumps, nodes)) if lines else json.dumps(nodes), encoding)
    ran = cli("tree", "show", str(file), "--output", str(tmp_path / "x.html"))
    assert (ran.code, ran.err) == (0, "")
    found = shown(tmp_path / "x.html")["nodes"]
    assert {(n["name"], None if n["parent"] is None else found[n["parent"]]["name"]) for n in found} == {
        ("0", None),
        ("8", None),
        ("2", "0"),
        ("7", "0"),  # its parent was not exported
        ("4", "2"),
    }
    assert [(n["text"], n["tokens"], n["reason"], n["logprob"]) for n in found][-1] == ("<4>", 1, "eos", -1.5)


def test_a_journal(cli: Cli, tmp_path: Path, model: str) -> None:
    engine = journaled(tmp_path / "steps.journal")
    engine.submit(request("a", range(3, 12), Beam(width=3), max_tokens=6))
    engine.submit(request("b", range(3, 12), Sample(n=4, seed=1), max_tokens=6))
    run(engine)
    engine.close()
    file = str(tmp_path / "steps.journal")
    assert cli("tree", "show", file).code == 0
    whole = shown(tmp_path / "steps.journal.html")
    assert [node["name"] for node in whole["nodes"] if node["parent"] is None] == ["a", "b"]
    assert whole["nodes"][0]["text"] == "3 4 5 6 7 8 9 10 11 "
    assert whole["blocks"]["size"] == 4
    assert whole["blocks"]["refs"]
    ran = cli("tree", "show", file, "--only", "b", "--until", "2", "--tokenizer", model)
    assert (ran.code, ran.err) == (0, "")
    part = shown(tmp_path / "steps.journal.html")
    assert len(part["nodes"]) == 5
    assert len(part["steps"]) == 3
    assert part["nodes"][0]["text"].isprintable()
    assert not part["nodes"][0]["text"][:1].isdigit()


@pytest.mark.parametrize(
    "content", ["", "[]", "hello", "{}", "[3]", '{"format": "x"}', '{"node": 1}', "[" * 100_000, "\udcff"]
)
def test_what_is_none_is_wrong_usage(cli: Cli, tmp_path: Path, content: str) -> None:
    file = tmp_path / "x"
    file.write_text(content, errors="surrogateescape")
    ran = cli("tree", "show", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.error_lines) == 1
    assert not (tmp_path / "x.html").exists()


def test_what_is_not_there(cli: Cli, tmp_path: Path) -> None:
    assert cli("tree", "show", str(tmp_path / "nowhere")).code == 2
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", [3], Sample(n=1, seed=1), max_tokens=1))
    run(engine)
    engine.close()
    assert cli("tree", "show", str(tmp_path / "j"), "--only", "b").code == 2
    ran = cli("tree", "show", str(tmp_path / "j"), "--tokenizer", str(tmp_path / "nowhere"))
    assert ran.code == 2
    assert ran.err.startswith("forkdecode: tokenizer: ")
