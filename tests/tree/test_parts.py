"""Exports and imports that are too big for one command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkdecode import LLM, AsyncClient, Client, Sample, TreeLimits
from forkdecode.calls.tree import Node, Tree, parts
from forkdecode.calls.tree.parts import Importing, exports
from forkdecode.errors import CapacityError, InvalidRequestError
from forkdecode.rpc.convert_tree_commands import command_message
from forkdecode.tree_types import Export, Import, NodeInfo, NodePath
from tests.rpc.tree_records import paths
from tests.server.servers import Running, running_server, tiny_llm

LIMIT = 4096
PROMPT = "hello you, hello world"


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with tiny_llm() as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: LLM) -> Iterator[Running]:
    """It takes commands of a few kilobytes alone."""
    with running_server(llm, max_request_bytes=LIMIT) as running:
        yield running


def node_of(number: int, tokens: int = 1) -> Node:
    return Node(NodeInfo(number, None, 0, "stopped", 0, (1,) * tokens, "", 0), None)


@given(st.lists(paths(), min_size=1, max_size=12), st.integers(300, 3000))
def test_parts_are_small_enough_and_know_the_parents(found: list[NodePath], limit: int) -> None:
    given = [replace(path, node=number) for number, path in enumerate(found)]
    given = [replace(path, parent=path.node // 2 if path.node else None) for path in given]
    importing = Importing(given, limit)
    sent: list[Import] = []
    for verb in importing.verbs():
        command: Any = verb.command(2**62)
        size = command_message(command).ByteSize()
        assert size <= limit or len(command.paths) == 1
        known = {node.id for node in importing.nodes}
        own = {path.node for path in command.paths}
        wanted = {path.parent for path in command.paths if path.parent is not None} - own
        assert {name for name, _ in command.parents} == wanted
        assert {node for _, node in command.parents} == {100 + name for name in wanted} <= known
        importing.nodes += [node_of(100 + path.node) for path in command.paths]
        sent.append(command)
    assert [path for command in sent for path in command.paths] == given


def test_an_answer_holds_so_many_tokens_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "MAX_EXPORTED_TOKENS", 10)
    monkeypatch.setattr(parts, "_NODES", 3)
    nodes = [node_of(i, tokens) for i, tokens in enumerate((4, 6, 1, 30, 9, 1, 1, 1, 1, 1))]
    commands: list[Any] = [verb.command(1) for verb in exports(nodes)]
    assert all(isinstance(command, Export) for command in commands)
    assert [command.nodes for command in commands] == [(0, 1), (2,), (3,), (4, 5), (6, 7, 8), (9,)]
    assert [verb.nothing for verb in exports([])] == [True]


def grown(tree: Tree) -> list[Node]:
    """Some hundred nodes: several commands' worth."""
    leaves = [tree.root]
    for _ in range(4):
        leaves = tree.decode(leaves, Sample(4, temperature=2.0), max_tokens=3, ignore_eos=True)[:20]
    return list(tree.nodes)


def kept(node: Node) -> tuple[Any, ...]:
    ends = (node.state, node.finish_reason, node.cumulative_logprob)
    return (node.path_token_ids, node.text, node.depth, node.lineage, len(node.children), *ends)


def test_a_file_bigger_than_a_command_is_loaded(llm: LLM, server: Running, tmp_path: Path) -> None:
    with llm.tree(PROMPT, seed=3) as tree:
        nodes = grown(tree)
        tree.save(tmp_path / "tree.fd")
        saved = list(map(kept, nodes))
        expected = [node.token_ids for node in tree.decode(nodes[-4:], Sample(2), max_tokens=4)]
    with Client(server.address) as client, client.tree() as there:
        assert len(nodes) > 100
        back = there.load(tmp_path / "tree.fd")
        assert list(map(kept, back)) == saved
        assert {node.parent for node in back if node.depth} <= set(back)
        found = there.decode(back[-4:], Sample(2), max_tokens=4)
        assert [node.token_ids for node in found] == expected
    with llm.tree() as here:
        assert list(map(kept, here.load(tmp_path / "tree.fd"))) == saved


def test_all_are_imported_or_none(llm: LLM, server: Running) -> None:
    with llm.tree(PROMPT, seed=3) as tree:
        records = tree.export(grown(tree))
    with Client(server.address) as client, client.tree(PROMPT, limits=TreeLimits(max_nodes=90)) as there:
        with pytest.raises(CapacityError, match="max_nodes"):
            there.import_(records)
        assert there.nodes == (there.root,)
        assert there.decode(there.root, max_tokens=2)

    async def refused() -> None:
        async with AsyncClient(server.address) as client:
            limits = TreeLimits(max_nodes=90)
            async with await client.tree(PROMPT, limits=limits) as tree:
                with pytest.raises(CapacityError, match="max_nodes"):
                    await tree.import_(records)
                assert tree.nodes == (tree.root,)
            async with await client.tree() as tree:
                assert list(map(kept, await tree.import_(records)))[-1][0] == records[-1].token_ids

    asyncio.run(refused())


def test_a_record_that_stands_twice_is_refused_at_once(llm: LLM) -> None:
    with llm.tree(PROMPT) as tree:
        [record] = tree.export(tree.root)
        with pytest.raises(InvalidRequestError, match=r"^paths: node 0 stands twice"):
            tree.import_([record, record])
        wrong: Any = [{}]
        with pytest.raises(InvalidRequestError, match=r"^paths"):
            tree.import_(wrong)
