"""Pictures of trees of an LLM: what was decoded, pruned, computed and shared."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode import AsyncLLM, InvalidRequestError, Sample
from forkdecode.calls.picture import Picture
from forkdecode.calls.tree.history import TreeHistory
from forkdecode.calls.tree.node import Node
from forkdecode.tree_types import NodeInfo
from tests.calls.picture.browser import Parsed
from tests.llm.models import PROMPT, TOKENIZER, ids, opened, tiny_llama

WORDS: dict[str, Any] = {"max_tokens": 6, "allowed_token_ids": ids("abc d\n"), "ignore_eos": True}
HOSTILE = "</script><b>&\u202e\u2028"


def test_a_picture_of_a_search(tmp_path: Path) -> None:
    file = tmp_path / "tree.html"
    with opened(block_size=4) as llm, llm.tree(PROMPT, seed=5) as tree:
        first = tree.decode(tree.root, Sample(n=3), **WORDS)
        tree.prune(first[1:])
        given = tree.extend(first[0], HOSTILE)
        tree.decode(given, Sample(n=2), **WORDS)
        running = tree.start(tree.root, **(WORDS | {"max_tokens": 100}))
        tree.render(file, title=HOSTILE, scores={first[0]: 0.5, first[1]: -2, first[2]: True})
        tree.prune(running)
        tree.save(tmp_path / "tree.fd")
    tree.render(tmp_path / "closed.html")
    parsed = Parsed(file.read_text("ascii"))
    assert parsed.title == HOSTILE
    nodes = parsed.data["nodes"]
    assert [node["parent"] for node in nodes] == [None, 0, 0, 0, 1, 4, 4, 0]
    assert [node["kind"] for node in nodes] == ["prompt", *["generated"] * 3, "given", *["generated"] * 3]
    assert [node["text"] for node in nodes[:5]] == [PROMPT, *(node.text for node in first), HOSTILE]
    assert [node["score"] for node in nodes[:5]] == [None, 0.5, -2, 1.0, None]
    prompt = len(ids(PROMPT))
    assert [(node["computed"], node["shared"]) for node in nodes[1:4]] == [
        (prompt, 0),
        (0, prompt),
        (0, prompt),
    ]
    own = len(ids(HOSTILE))
    # The last token of what was extended has no KV yet, nor has the extension.
    assert nodes[5]["computed"] == own + 1
    assert nodes[5]["shared"] == nodes[6]["shared"] - own - 1
    assert [node["gone"] is not None for node in nodes] == [False, False, True, True, *[False] * 4]
    assert nodes[7]["ended"] is None
    assert (parsed.data["block_size"], parsed.data["blocks"]) == (4, None)
    labels = parsed.data["steps"]
    assert labels[nodes[1]["born"]].endswith(": 3 new")
    assert labels[nodes[2]["gone"]].endswith(": 2 pruned")
    saved = Picture.of_json(json.loads((tmp_path / "tree.fd").read_text()))
    assert [node.text for node in saved.nodes[:5]] == [node["text"] for node in nodes[:5]]
    assert (saved.nodes[7].gone, saved.nodes[7].reason) == (len(saved.steps) - 1, "pruned")


def test_wrong_scores_and_titles(tmp_path: Path) -> None:
    with opened(block_size=4) as llm, llm.tree(PROMPT) as tree:
        for wrong in ({tree.root: "a"}, {3: 1.0}, {tree.root: float("nan")}):
            with pytest.raises(InvalidRequestError, match="scores"):
                tree.render(tmp_path / "x", scores=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="title"):
            tree.render(tmp_path / "x", title="\ud800")
        with pytest.raises(OSError, match="nowhere"):
            tree.render(tmp_path / "nowhere" / "x")


def test_pictures_of_coroutines(tmp_path: Path) -> None:
    async def run() -> None:
        async with await AsyncLLM.create(tiny_llama(), tokenizer=TOKENIZER, block_size=4) as llm:
            tree = await llm.tree(PROMPT)
            await tree.decode(tree.root, Sample(n=2), **WORDS)
            tree.render(tmp_path / "tree.html")
            await tree.save(tmp_path / "tree.fd")
            assert [n.text for n in await tree.load(tmp_path / "tree.fd")] == [n.text for n in tree.nodes[:3]]
            await tree.close()

    asyncio.run(run())
    data = Parsed((tmp_path / "tree.html").read_text("ascii")).data
    assert len(data["nodes"]) == 3
    saved = json.loads((tmp_path / "tree.fd").read_text())
    assert len(saved.pop("paths")) == 3
    assert saved == data


def test_what_was_pruned_long_ago_is_forgotten() -> None:
    history = TreeHistory(max_pruned=2)
    root = Node(NodeInfo(0, None, 0, "stopped", 0, (1,), "a", 0), None)
    history.came([root])
    for number in range(1, 5):
        node = Node(NodeInfo(number, 0, 1, "stopped", 1, (1,), "b", 0), root)
        history.came([node])
        history.pruned([node])
    found = history.picture("t", {})
    assert [node.name for node in found.nodes] == ["0", "3", "4"]
    assert found.notes.startswith("2 nodes")
    assert found.steps[-1] == "change 5 of 5: 1 pruned"
