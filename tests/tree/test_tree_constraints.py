"""Constraints in trees of an LLM: one holds from node to node."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from forkdecode import LLM, InvalidRequestError, Sample
from forkdecode.constraint_types import FromCatalogue, JsonSchema
from forkdecode.constraints.catalogue_build import build_catalogue
from tests.llm.models import PROMPT, ids

SCHEMA = JsonSchema(
    {
        "type": "object",
        "properties": {
            "a": {"enum": ["left", "right"]},
            "b": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("number", range(4))
def test_under_a_grammar_pieces_make_whole_texts(llm: LLM, number: int) -> None:
    """Pieces of any length, by max_tokens, a step delimiter, or given."""
    draw = random.Random(number)
    whole = llm.decode(PROMPT, constraint=SCHEMA, max_tokens=120).candidates[0]
    assert json.loads(whole.text).keys() == {"a", "b"}
    with llm.tree(PROMPT, seed=number) as tree:
        [node] = tree.decode(tree.root, max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        while not node.is_finished:
            step = draw.choice([(), ("e", '"')])
            [node] = tree.decode(node, max_tokens=draw.randint(1, 9), step=step, constraint=SCHEMA)
        assert node.completion == whole.text
        leaves = tree.decode(tree.root, Sample(6), max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        done = []
        while leaves:
            done += [leaf for leaf in leaves if leaf.is_finished]
            leaves = [leaf for leaf in leaves if not leaf.is_finished]
            for i, leaf in enumerate(leaves):
                if leaf.num_tokens > tree.root.num_tokens + 1:
                    leaves[i] = tree.extend(tree.truncate(leaf, leaf.num_tokens - 1), leaf.token_ids[-1:])
            if leaves:
                leaves = tree.decode(leaves, Sample(), max_tokens=draw.randint(1, 9), constraint=SCHEMA)
        for leaf in done:
            found = json.loads(leaf.completion)
            assert found["a"] in ("left", "right")
            assert 0 <= found["b"] <= 99


def test_items_of_a_catalogue_in_pieces_and_one_after_another(llm: LLM) -> None:
    items = [ids(text) for text in ("abc", "abd", "bcde", "cab", "dd")]
    keys = {item: f"item {i}" for i, item in enumerate(items)}
    llm.catalogues.put("items", build_catalogue(items, list(keys.values())))
    with llm.tree(PROMPT, seed=2) as tree:
        for end in ("eos", "item"):
            held: dict[str, Any] = {"constraint": FromCatalogue("items", end=end)}
            [whole] = tree.decode(tree.root, max_tokens=8, **held)
            [begun] = tree.decode(tree.root, max_tokens=1, **held)
            [rest] = tree.decode(begun, max_tokens=8, **held)
            assert begun.token_ids + rest.token_ids == whole.token_ids
            assert rest.finish_reason == ("eos" if end == "eos" else "stop")
            item = whole.token_ids[:-1] if end == "eos" else whole.token_ids
            assert (whole.item, begun.item, rest.item) == (keys[item], None, keys[item])
            for leaf in tree.decode(
                tree.decode(tree.root, Sample(6), max_tokens=1, **held), max_tokens=8, **held
            ):
                assert ids(leaf.completion) in items
        [second] = tree.decode(rest, max_tokens=8, **held)
        assert second.token_ids in items
        assert second.item == keys[second.token_ids]
        [twin] = tree.decode(begun, max_tokens=8, **held)
        tree.finish(twin)
        assert (twin.item, twin.is_finished) == (rest.item, True)
        assert tree.fork(second)[0].item is tree.extend(second, "a").item is None
        with llm.tree() as other:
            assert [node.item for node in other.import_(tree.export([begun, second]))] == [None, second.item]
        given = tree.extend(tree.root, "c")
        [anew] = tree.decode(given, max_tokens=8, **held)
        assert anew.token_ids in items
        llm.catalogues.put("items", build_catalogue([ids("zz")]))
        with pytest.raises(InvalidRequestError, match=r"^constraint: does not allow how node \d+ goes on"):
            tree.decode(begun, max_tokens=8, **held)
        assert tree.decode(tree.extend(begun, "z"), max_tokens=8, **held)[0].text == "zz"
        llm.catalogues.remove("items")


def test_a_function_says_what_may_follow_a_path(llm: LLM) -> None:
    letters = ids("abcd")

    def follows(batch_id: int, path: Any) -> list[int]:
        return [letters[int(path.sum()) % 4], letters[len(path) % 4]]

    with llm.tree(PROMPT) as tree:
        [whole] = tree.decode(tree.root, max_tokens=12, prefix_allowed_tokens_fn=follows)
        assert set(whole.token_ids) <= set(letters)
        node = tree.root
        for length in (1, 4, 7):
            [node] = tree.decode(node, max_tokens=length, prefix_allowed_tokens_fn=follows)
        assert node.path_token_ids == whole.path_token_ids
        for child in tree.decode(
            tree.extend(node, "zz"), Sample(3), max_tokens=5, prefix_allowed_tokens_fn=follows
        ):
            for at in range(child.num_tokens - 5, child.num_tokens):
                path = torch.tensor(child.path_token_ids[:at])
                assert child.path_token_ids[at] in follows(0, path)
