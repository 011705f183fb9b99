"""A path of forks has one lineage, whichever way it is computed."""

from __future__ import annotations

import numpy as np

from forkdecode import lineage


def test_descend_is_child_after_child() -> None:
    root = lineage.root(7)
    paths = np.array([[3, 1, 4], [3, 1, 5], [0, 0, 0]])
    found = lineage.descend(root, paths)
    for path, result in zip(paths.tolist(), found, strict=True):
        name = root
        for token in path:
            name = np.uint64(lineage.child(name, token))
        assert result == name
    assert len(set(found.tolist())) == 3
    assert lineage.descend(root, paths[:, :0]).tolist() == [int(root)] * 3
