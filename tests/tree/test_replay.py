"""A session's journal replays: with rows that were let go of, and under constraints that go on."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from forkdecode.constraint_types import Regex
from forkdecode.engine.replay import replay
from forkdecode.tree_types import Decode, Prune, Stop, Truncate
from forkdecode.types import Options, Sample
from tests.tree.driven import Driven
from tests.tree.test_journal_picture import journaled

TEXTS = Regex("([a-c]{3}[xyz])*")
STEPS = st.lists(
    st.tuples(st.sampled_from(["decode", "decode", "stop", "prune", "truncate"]), st.integers(0, 10**6)),
    min_size=4,
    max_size=14,
)


@given(STEPS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_tree_replays_with_what_was_stopped(tmp_path: Path, steps: list[tuple[str, int]]) -> None:
    file = tmp_path / "j"
    file.unlink(missing_ok=True)
    port = journaled(file)
    tree = Driven(port=port)
    base = len(tree.path(0))
    for verb, pick in steps:
        infos = tree.session.snapshot().nodes
        growing = [info.node for info in infos if info.state == "generating"]
        resting = [info.node for info in infos if info.state == "stopped"]
        node = resting[pick % len(resting)]
        number, seeds = tree.next_id(), (pick,)
        options = Options(max_tokens=1 + pick % 9, constraint=TEXTS if pick % 3 else None)
        if verb == "decode":
            tree.accepted(Decode(number, (node,), Sample(n=1 + pick % 4), options, seeds=seeds))
        elif verb == "truncate":
            tree.accepted(Truncate(number, node, base + pick % (len(tree.path(node)) - base + 1)))
        elif growing:
            chosen = (growing[pick % len(growing)],)
            tree.accepted(Stop(number, chosen) if verb == "stop" else Prune(number, chosen))
        for _ in range(pick % 4):
            tree.step()
    tree.run()
    tree.close()
    port.close()
    found = replay(file)
    assert found.ok, found.broken
    assert found.unfinished is None
