"""Rows of what can be done with a strategy's candidates besides waiting for them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from forkdecode import CancelledError, CandidateFinished, Committed, Delta, Finished, Sample, Started
from tests.llm.models import PROMPT, outcome
from tests.matrix.rows import MAX, STRATEGIES, Decoder, Refusal, Row, generated, plain


def streaming(llm: Decoder, strategy: Any) -> None:
    """What is streamed is the beginning of what comes, all of it where candidates don't compete."""
    events = list(llm.stream(PROMPT, strategy, max_tokens=MAX, ignore_eos=True))
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    result = events[-1].result
    assert outcome(result) == outcome(plain(llm, strategy))
    tokens: dict[int | None, tuple[int, ...]] = defaultdict(tuple)
    for event in events:
        if isinstance(event, (Delta, Committed)):
            tokens[event.candidate if isinstance(event, Delta) else None] += event.token_ids
    ended = {e.candidate for e in events if isinstance(e, CandidateFinished)}
    if None in tokens or not ended:
        committed = tokens[None]
        assert all(t[: len(committed)] == committed for t in generated(result))
        return
    assert ended == set(tokens)
    assert {c.index: c.token_ids for c in result.candidates}.items() <= tokens.items()


def scoring(llm: Decoder, strategy: Any) -> None:
    """score() finds what decoding found, of every candidate."""
    found = plain(llm, strategy).candidates
    answers = llm.score(PROMPT, [c.token_ids for c in found]).continuations
    for candidate, answer in zip(found, answers, strict=True):
        assert answer.cumulative_logprob == pytest.approx(candidate.cumulative_logprob, abs=1e-3)


def trees(llm: Decoder, strategy: Any) -> None:
    """A node's children are what a request with its path as prompt gives."""
    with llm.tree(PROMPT) as tree:
        count = strategy.n if isinstance(strategy, Sample) else 1
        nodes = tree.decode(tree.root, strategy, max_tokens=5, ignore_eos=True)
        assert len(nodes) == count
        again = tree.decode(nodes[0], strategy, max_tokens=5, ignore_eos=True)
        assert all(node.parent is nodes[0] for node in again)
        assert {len(node.token_ids) for node in (*nodes, *again)} == {5}


def many(llm: Decoder, strategy: Any) -> None:
    """A batch of prompts, a strategy each: every result is what it would be alone."""
    prompts = [PROMPT, "abc", PROMPT]
    found = llm.decode(prompts, [strategy, None, strategy], max_tokens=5, ignore_eos=True)
    alone = plain(llm, strategy, max_tokens=5)
    assert outcome(found[0]) == outcome(found[2]) == outcome(alone)


def cancelling(llm: Decoder, strategy: Any) -> None:
    """Between two steps; that every block is given back is seen after each cell."""
    handle = llm.submit(PROMPT, strategy, max_tokens=300, ignore_eos=True)
    handle.cancel()
    with pytest.raises(CancelledError):
        handle.result()


NO_NODES = Refusal(
    "strategy",
    "Not available on trees: a node must live until you release it, but a search discards"
    " competing candidates",
)
ROWS = [
    Row("streamed", streaming),
    Row("batches, a strategy each", many),
    Row("cancelled while it runs", cancelling),
    Row("score() of its candidates", scoring),
    Row(
        "nodes of a tree", trees,
        refused={name: NO_NODES for name in STRATEGIES if name not in ("Greedy", "Sample")},
    ),
]  # fmt: skip
