"""What a command asks for is resolved once, however many nodes it is about."""

from __future__ import annotations

from typing import Any

import pytest

from forkdecode.requests.tokenizing import Tokenizing
from forkdecode.tree_types import Decode, Fork, ScoreNodes
from forkdecode.types import Greedy, Options
from tests.llm.models import VOCAB
from tests.tree.driven import Driven

NODES = 50


@pytest.fixture
def plain_texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of what fields texts are tokenized."""
    found: list[str] = []
    plain = Tokenizing.plain

    def counted(self: Tokenizing, field: str, text: str, **how: Any) -> tuple[int, ...]:
        found.append(field)
        return plain(self, field, text, **how)

    monkeypatch.setattr(Tokenizing, "plain", counted)
    return found


def forks(tree: Driven) -> tuple[int, ...]:
    return tuple(one.node for one in tree.accepted(Fork(1, 0, NODES)))


def test_decodes_of_a_command_share_their_options(plain_texts: list[str]) -> None:
    tree = Driven()
    options = Options(
        max_tokens=1, logit_bias=dict.fromkeys(range(len(VOCAB)), 0.5), bad_words=("abc",), stop=("b",)
    )
    tree.accepted(Decode(2, forks(tree), Greedy(), options, step=("a",)))
    sent = tree.port.submitted
    assert len(sent) == NODES
    for part in ("processors", "options", "strategy", "eos_ids", "stop_ids", "automaton"):
        assert len({id(getattr(one, part)) for one in sent}) == 1, part
    assert plain_texts == ["bad_words"] * 2
    assert sent[0].options.stop == ("b", "a")


def test_scores_of_a_command_share_their_continuations(plain_texts: list[str]) -> None:
    tree = Driven()
    tree.accepted(ScoreNodes(2, forks(tree), ("ab", (5, 6))))
    sent = tree.port.submitted
    assert len(sent) == NODES
    assert len({(id(one.strategy), id(one.options)) for one in sent}) == 1
    assert plain_texts == ["continuations"]
