"""The tree benchmark: its counts by hand, and a short run on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import tree
from benchmarks.tree import Run, Shape
from tests.tiny_model import save_tiny_llama


def test_the_default_search_has_64_leaves() -> None:
    shape = Shape()
    assert [shape.frontier(level) for level in range(4)] == [1, 4, 16, 16]
    assert shape.frontier(3) * shape.ways == 64
    assert shape.decoded == 37
    # The prompt but its last token; of 37 nodes the last, of 4 children each 15 of 16 tokens.
    assert shape.least == 999 + 37 + 37 * 4 * 15
    assert tree.unshared(shape, 16) == (4 * 64, 16 * 65, 64 * 66, 64 * 67)


def test_a_tree_that_computes_twice_or_shares_too_little_is_no_result() -> None:
    shape = Shape()
    good = Run(1.0, (), shape.least, (70, 100, 200, 300))
    assert tree.check_tree(good, shape, 16) == pytest.approx(1 - 300 / 4288)
    with pytest.raises(SystemExit, match="computed"):
        tree.check_tree(Run(1.0, (), shape.least + 1, (1,)), shape, 16)
    with pytest.raises(SystemExit, match="saves"):
        tree.check_tree(Run(1.0, (), shape.least, (2000,)), shape, 16)


def test_a_short_search_on_every_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = save_tiny_llama(tmp_path / "tiny"), tmp_path / "tree.jsonl"
    command = f"--model {model} --threads 1 --pairs 2 --prompt 48 --levels 3 --ways 3 --keep 3 --tokens 5"
    tree.main([*command.split(), "--record", str(file), "--sides", *tree.SIDES])
    records = [json.loads(line)["result"] for line in file.read_text().splitlines()]
    assert [found["side"] for found in records] == [side for side in tree.SIDES for _ in range(2)]
    assert [found["pairs"] for found in records] == [1, 2] * len(tree.SIDES)
    shape = Shape(48, 3, 3, 3, 5)
    by_side = {found["side"]: found for found in records}
    assert {found["tree_computed"] for found in records} == {shape.least}
    decoded = shape.decoded * (1 + shape.ways * (shape.tokens - 1))
    paths = 47 + 3 * (48 + 4) + 3 * (48 + 9)
    assert by_side["requests-off"]["side_computed"] == decoded + paths
    assert shape.least < by_side["requests-on"]["side_computed"] < decoded + paths
    assert by_side["transformers"]["side_computed"] is None
    assert records[0]["leaves"] == 9
    assert [found["same_leaves"] for found in records[:4]] == [1.0] * 4
    assert records[0]["saved"] == 0.5
    assert "each once" in capsys.readouterr().out


def test_the_kept_cache_of_transformers_is_that_of_its_rows(tmp_path: Path) -> None:
    """Drawn as if by argmax, its leaves are those of who computes every path anew."""
    from forkdecode.model.loader import load

    model = load(str(save_tiny_llama(tmp_path / "tiny")), "float32").model
    model.generation_config.eos_token_id = None
    shape, prompt = Shape(prompt=20, levels=3, ways=2, keep=2, tokens=4), tuple(range(3, 23))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "TEMPERATURE", 1e-6)
        kept = tree.by_transformers_kept(model, prompt, shape, 1)
        anew = tree.by_transformers(model, prompt, shape, 1)
    assert sorted(kept.leaves) == sorted(anew.leaves)
    assert {len(leaf) for leaf in kept.leaves} == {20 + 3 * 4}
