"""prefix_allowed_tokens_fn against `generate`'s, and against the plain rule with masked rows.

With fewer legal continuations than beams `generate` fills up with rows at -1e9 and returns what becomes of
them; the engine has fewer beams, and returns fewer. Those of `generate` are left out of the comparison.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forkdecode import Beam, Options
from forkdecode.step import F32
from tests.constraints.toy import NOTHING, Table, random_table
from tests.oracle.beam_rule import Path, Search, beam_search
from tests.oracle.engines import Case, Pair, hypotheses, model_scores, paired
from tests.oracle.generation import generate
from tests.oracle.test_random_models import generate_is_defined, random_llama
from tests.oracle.verdict import assert_same

Function = Callable[[int, torch.Tensor], list[int]]


@dataclass(frozen=True)
class Asked:
    vocab: int
    seed: int
    eos: frozenset[int]
    table: Table
    cases: tuple[Case, ...]


def function_of(table: Table, prompt: Sequence[int]) -> Function:
    """The table as a function of all tokens. `generate` asks it of rows that left the table, too."""

    def allowed(batch_id: int, ids: torch.Tensor) -> list[int]:
        assert batch_id == 0
        assert ids.dtype == torch.int64
        state = 0
        for token in ids[len(prompt) :].tolist():
            state = int(table.moves[state, token])
            if state == NOTHING:
                return [0]
        beside = table.also if state in table.also_states else ()
        return [*np.flatnonzero(table.moves[state] != NOTHING).tolist(), *beside]

    return allowed


@st.composite
def asked(draw: st.DrawFn, widths: st.SearchStrategy[int], degree: st.SearchStrategy[int]) -> Asked:
    vocab = draw(st.integers(20, 60))
    eos = draw(st.frozensets(st.integers(0, vocab - 1), max_size=2))
    seed = draw(st.integers(0, 10_000))
    states = frozenset(draw(st.sets(st.integers(1, 5), min_size=1)))
    table = random_table(
        seed, vocab, degree=draw(degree), also=tuple(sorted(eos)), also_states=states if eos else frozenset()
    )
    table.moves[:, sorted(eos)] = NOTHING
    table.moves[(table.moves == NOTHING).all(1), next(t for t in range(vocab) if t not in eos)] = 0
    cases = []
    for _ in range(4):
        width = draw(widths)
        beam = Beam(
            width=width,
            length_penalty=draw(st.sampled_from([-0.5, 0.0, 1.0, 2.0])),
            early_stopping=draw(st.sampled_from([False, True, "never"])),
        )
        most = draw(st.integers(1, 12))
        prompt = tuple(draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6)))
        cases.append(Case(prompt, beam, Options(max_tokens=most), eos))
    return Asked(vocab, seed, eos, table, tuple(cases))


def reference(pair: Pair, case: Case, function: Function) -> Search:
    """The plain rule on rows of which what is not allowed is masked: beams' are not normalised again."""
    plain = model_scores(pair.oracle, case.prompt, case.options, case.ends, greedy=case.rule.greedy)

    def scores(paths: Sequence[Path]) -> F32:
        rows = np.array(plain(paths))
        for row, path in zip(rows, paths, strict=True):
            allowed = function(0, torch.tensor([*case.prompt, *path]))
            row[np.setdiff1d(np.arange(len(row)), allowed)] = -np.inf
        if case.rule.greedy:
            rows = torch.from_numpy(rows).log_softmax(-1).numpy()
        return rows

    return beam_search(case.rule, scores, lambda path: path[-1] in case.ends)


def check(batch: Asked) -> int:
    """How many of the cases were compared with `generate` besides the plain rule."""
    compared = 0
    with paired(random_llama(batch.vocab, batch.seed, 0.6), batch.eos) as pair:
        functions = [function_of(batch.table, case.prompt) for case in batch.cases]
        held = [
            dataclasses.replace(c, options=dataclasses.replace(c.options, prefix_allowed_tokens_fn=f))
            for c, f in zip(batch.cases, functions, strict=True)
        ]
        for case, function, result in zip(batch.cases, functions, pair.decode(held), strict=True):
            search = reference(pair, case, function)
            got = hypotheses(result)
            assert_same(got, search.hypotheses, lambda s=search: s, case)
            if not generate_is_defined(case, search):
                continue
            options: dict[str, Any] = {"prefix_allowed_tokens_fn": function}
            want = generate(pair.oracle, case.prompt, case.rule, case.ends, **options)
            assert_same(got, want.hypotheses, lambda s=search: s, case)
            compared += 1
    return compared


@given(asked(st.integers(1, 5), st.integers(11, 18)))
@settings(max_examples=15, deadline=None)
def test_equals_generate(batch: Asked) -> None:
    assert check(batch) == len(batch.cases)


@given(asked(st.integers(2, 8), st.integers(1, 3)))
@settings(max_examples=15, deadline=None)
def test_fewer_legal_paths_than_beams(batch: Asked) -> None:
    check(batch)
