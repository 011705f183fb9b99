"""Nodes of an LLM's trees that are exported and come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode import LLM, InvalidRequestError, NodePath, Sample
from forkdecode.calls.tree import Node
from forkdecode.constraint_types import Regex
from tests.llm.models import PROMPT, ids
from tests.tree.words import LONG, WORDS


def test_what_is_exported_is_plain_and_comes_back(llm: LLM) -> None:
    with llm.tree(PROMPT, seed=3) as tree:
        nodes = tree.decode(tree.root, Sample(n=2), **WORDS)
        text = json.dumps([path.to_json() for path in tree.export([tree.root, *nodes])])
        expected = tree.decode(nodes, Sample(n=2), **WORDS)
    with llm.tree() as other:
        with pytest.raises(InvalidRequestError, match="without one"):
            _ = other.root
        root, *back = other.import_(NodePath.of_json(plain) for plain in json.loads(text))
        assert other.root is root
        assert [node.parent for node in back] == [root, root]
        assert [node.path_text for node in back] == [node.path_text for node in nodes]
        found = other.decode(back, Sample(n=2), **WORDS)
        assert [n.token_ids for n in found] == [n.token_ids for n in expected]


def test_a_saved_tree_is_loaded_and_goes_on(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "tree.fd"
    with llm.tree(PROMPT, seed=3) as tree:
        [first, second] = tree.decode(tree.root, Sample(n=2), **WORDS)
        given = tree.extend(first, " a")
        [held] = tree.decode(given, Sample(), max_tokens=3, constraint=Regex("[ab]{9}"))
        cut = tree.truncate(second, second.num_tokens - 1)
        running = tree.start(tree.root, **LONG)
        tree.prune(given, subtree=False)
        tree.save(file)
        tree.prune(running)
        kept = [node for node in tree.nodes if node not in running]
        expected = [tree.decode(node, Sample(n=2), **WORDS) for node in kept]
        expected.append(tree.decode(held, max_tokens=20, constraint=Regex("[ab]{9}")))
    tree.save(tmp_path / "ended.fd")
    with llm.tree() as other:
        back = other.load(file)
        assert [told(node) for node in back] == [told(node) for node in kept]
        assert [node.path_text for node in back] == [node.path_text for node in kept]
        by_text = dict(zip(kept, back, strict=True))
        assert (by_text[cut].parent, by_text[held].parent) == (by_text[tree.root], None)
        found = [other.decode(node, Sample(n=2), **WORDS) for node in back]
        found.append(other.decode(by_text[held], max_tokens=20, constraint=Regex("[ab]{9}")))
        assert [[n.token_ids for n in made] for made in found] == [
            [n.token_ids for n in made] for made in expected
        ]
        with pytest.raises(InvalidRequestError, match="saved after the tree had ended"):
            other.load(tmp_path / "ended.fd")
    (tmp_path / "lines.json").write_text("\n".join(json.dumps(p.to_json()) for p in exported(llm)))
    with llm.tree() as other:
        assert [node.text for node in other.load(tmp_path / "lines.json")] == [PROMPT, "!"]
        assert other.load(file)[0].text == PROMPT


def told(node: Node) -> tuple[Any, ...]:
    """What of a node a file keeps."""
    return (node.token_ids, node.text, node.state, node.finish_reason, node.cumulative_logprob, node.lineage)


def exported(llm: LLM) -> list[NodePath]:
    with llm.tree(PROMPT) as tree:
        return tree.export([tree.root, tree.extend(tree.root, "!")])


@pytest.mark.parametrize(
    "content",
    ["", "[]", "hello", "{}", "[3]", '{"format": "x"}', '{"format": 1, "paths": [{"own_ids": [1]}]}'],
)
def test_what_cannot_be_loaded_is_refused(llm: LLM, tmp_path: Path, content: str) -> None:
    (tmp_path / "x").write_text(content)
    with llm.tree(PROMPT) as tree:
        with pytest.raises(InvalidRequestError):
            tree.load(tmp_path / "x")
        with pytest.raises(FileNotFoundError):
            tree.load(tmp_path / "nowhere")
        assert tree.nodes == (tree.root,)


def test_what_precedes_an_imported_node_is_the_text_of_its_tokens(llm: LLM) -> None:
    """As docs/trees.md says: the stop text that was cut from its parent is in it."""
    with llm.tree(PROMPT) as tree, llm.tree() as other:
        [cut] = tree.decode(tree.root, stop="b", allowed_token_ids=ids("b"), max_tokens=3)
        last = tree.extend(cut, "x")
        assert last.path_text == PROMPT + "x"
        [alone] = other.import_(tree.export(last))
        assert alone.path_text == PROMPT + "bx"
        _, _, below = other.import_(tree.export([tree.root, cut, last]))
        assert below.path_text == last.path_text
