"""The policy that docs/search.md shows does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from forkdecode.calls.tree import Tree
from forkdecode.search import Budget, Decoding, run
from tests.search.world import World, reward, rewards

TEXT = (Path(__file__).parents[2] / "docs" / "search.md").read_text()


def test_the_policy_of_ones_own() -> None:
    (program,) = re.findall(r"```python\n(from forkdecode.search import Expand.*?)```", TEXT, re.S)
    names: dict[str, Any] = {}
    exec(program, names)
    world = World(6, ends=0.1)
    with Tree(world) as tree:
        result = run(
            tree, names["BestFirst"](), rewards, budget=Budget(nodes=80), decoding=Decoding(step_tokens=6)
        )
    assert len(result.finished) >= 3
    assert all(branch.is_finished for branch in result.finished)
    left = {b.id: reward(b) for b in result.unfinished}
    decoded = [c.nodes[0] for c in world.commands if type(c).__name__ == "Decode"]  # type: ignore[union-attr]
    assert len(set(decoded)) == len(decoded)
    assert not set(decoded) & set(left)
