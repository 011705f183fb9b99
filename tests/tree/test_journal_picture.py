"""A session's tree as its engine's journal shows it: every node that was decoded, by number and path."""

from __future__ import annotations

import time
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.engine.journal import Journal, Run
from forkdecode.engine.journal_picture import journal_picture
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.tree_types import Command, Decode, Extend, Fork, Prune, ScoreNodes, Stop, Truncate
from forkdecode.types import Options, Sample
from tests.tree.driven import BLOCK, Driven, InlinePort


def journaled(path: Path) -> InlinePort:
    """A port whose engine writes a journal."""
    port = InlinePort()
    config = EngineConfig(block_size=BLOCK, watermark=0.0)
    run = Run(config, 4096, 0, PreemptionCost(1.0, 1.0), b"toy", None, "0", time.time())
    port.engine = Engine(run.scheduler(), port.runner, Journal(path, run))
    return port


def draw(data: st.DataObject, tree: Driven) -> Command:
    """Any command on a node at rest, or that ends one that is not."""
    number = tree.next_id()
    infos = tree.session.snapshot().nodes
    chosen = data.draw(st.sampled_from(infos))
    if chosen.state == "generating":
        return data.draw(st.sampled_from([Stop(number, (chosen.node,)), Prune(number, (chosen.node,))]))
    node, length = chosen.node, len(tree.path(chosen.node))
    # Not stopped by EOS, or a path might end at once.
    options = Options(max_tokens=data.draw(st.integers(1, 4)), ignore_eos=True)
    given_ids = data.draw(st.lists(st.integers(3, 99), min_size=1, max_size=3))
    decode = Decode(number, (node,), Sample(n=data.draw(st.integers(1, 3))), options, seeds=(number,))
    commands: list[Command] = [
        decode,
        decode,
        Fork(number, node, 2, (2 * number, 2 * number + 1)),
        Extend(number, node, given_ids),
        Truncate(number, node, data.draw(st.integers(1, length))),
        ScoreNodes(number, (node,), ((7, 8), (7, 9))),
    ]
    if chosen.parent is not None:
        commands.append(Prune(number, (node,)))
    return data.draw(st.sampled_from(commands))


@given(data=st.data())
@settings(
    deadline=None,
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_was_decoded_is_in_the_journals_picture(tmp_path: Path, data: st.DataObject) -> None:
    file = tmp_path / "journal"
    file.unlink(missing_ok=True)
    tree = Driven("hello", journaled(file))
    for _ in range(data.draw(st.integers(1, 10))):
        tree.send(draw(data, tree))
        for _ in range(data.draw(st.sampled_from([0, 1, 3]))):
            tree.step()
    tree.run()
    live = tree.session.snapshot().nodes
    tree.port.engine.close()
    if not tree.port.submitted:
        return
    picture = journal_picture(file, only=tree.session.name)
    assert picture.notes == ""
    found = {node.name.rpartition(" ")[2]: node for node in picture.nodes}
    for info in live:
        generated = info.finish_reason is not None and info.finish_reason != "cancelled"
        if generated:
            node = found[str(info.node)]
            words: list[int] = []
            at = node
            while True:
                words[:0] = map(int, at.text.split())
                if at.parent is None:
                    break
                at = picture.nodes[at.parent]
            assert tuple(words) == tree.path(info.node)
            assert node.kind == "generated"
    if picture.blocks is not None:
        assert {place for _, place, _ in picture.blocks.tables} <= set(range(len(picture.nodes)))
        assert all(count >= 0 for _, _, count in picture.blocks.refs)


def test_a_stopped_node_is_shown_as_the_engine_left_it(tmp_path: Path) -> None:
    tree = Driven("hello", journaled(tmp_path / "j"))
    options = Options(max_tokens=50, ignore_eos=True)
    made = tree.accepted(Decode(tree.next_id(), (0,), Sample(n=2), options, seeds=(1,)))
    for _ in range(3):
        tree.step()
    tree.send(Stop(tree.next_id(), tuple(info.node for info in made)))
    tree.run()
    tree.port.engine.close()
    picture = journal_picture(tmp_path / "j")
    assert [node.reason for node in picture.nodes] == [None, "cancelled", "cancelled"]
    assert [node.tokens for node in picture.nodes[1:]] == [len(tree.path(1)) - len(tree.path(0))] * 2
    with pytest.raises(OSError, match="nowhere"):
        journal_picture(tmp_path / "nowhere")
