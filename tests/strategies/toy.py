"""A model small enough to enumerate, and a plain driver of policies over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from forkdecode import lineage
from forkdecode.step import Bools, Choice, Draw, FinishMask, GumbelTopK, RowTopK, SelectionResult, TopK
from forkdecode.strategies.history import History, TokenPath
from forkdecode.strategies.hypotheses import EOS, LENGTH, LIVE, STOP, HypothesisBatch
from forkdecode.strategies.policy import GroupRows, Policy, StopHits
from forkdecode_kernels.reference.perturbed import perturbed_row


@dataclass(frozen=True)
class Markov:
    """Next-token log-probabilities by the last token: logprobs [V, V] float32. Token 0 is the prompt.

    pairs: (last, next) tokens that together complete a "stop string".
    """

    logprobs: NDArray[np.float32]
    eos: tuple[int, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def vocab(self) -> int:
        return len(self.logprobs)

    def finish_table(self) -> NDArray[np.bool_]:
        table = np.zeros((self.vocab, self.vocab), np.bool_)
        for pair in self.pairs:
            table[pair] = True
        return table

    def reason(self, last: int, token: int) -> int:
        if token in self.eos:
            return EOS
        return STOP if (last, token) in self.pairs else LIVE


def markov(
    seed: int,
    vocab: int,
    *,
    eos: Sequence[int] = (),
    pairs: Sequence[tuple[int, int]] = (),
    levels: int | None = None,
    banned: float = 0.0,
) -> Markov:
    """Random; with `levels` values are drawn from few, so that scores tie. banned: share of illegal
    tokens, none of them in a row's token 1 (so that no row is illegal altogether)."""
    rng = np.random.default_rng(seed)
    if levels is None:
        logits = rng.normal(0, 2, (vocab, vocab))
    else:
        logits = rng.integers(0, levels, (vocab, vocab)).astype(np.float64)
    logits[(rng.random((vocab, vocab)) < banned) & (np.arange(vocab) != 1)] = -np.inf
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    if levels is not None:
        logprobs = np.round(logprobs * 4) / 4
    return Markov(logprobs.astype(np.float32), tuple(eos), tuple(pairs))


@dataclass
class Run:
    """What a decode came to, and what was asked for and live at each of its steps."""

    results: list[tuple[tuple[int, ...], float, int]] = field(default_factory=list)
    """(tokens, score, reason) in the order of policy.results()."""
    batch: HypothesisBatch | None = None
    paths: Sequence[TokenPath] = ()
    rows: list[GroupRows] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    finished: list[HypothesisBatch] = field(default_factory=list)
    tokens: list[list[tuple[int, ...]]] = field(default_factory=list)


def run(policy: Policy, model: Markov, max_tokens: int, *, seed: int = 0) -> Run:
    """Decodes to the end as the scheduler does, and checks what holds of every step."""
    out, history = Run(), History()
    rows, last = GroupRows.prompt(1, seed), np.zeros(1, np.int64)
    table = model.finish_table() if model.pairs else None
    while True:
        rows = replace(rows, finishing=None if table is None else FinishMask(table, last))
        choice = policy.choose(rows)
        out.rows.append(rows)
        out.choices.append(choice)
        result = answer(choice, model.logprobs[last])
        reason = np.array(
            [model.reason(last[r], t) for r, t in zip(result.rows, result.tokens, strict=True)], np.uint8
        )
        if rows.generated + 1 == max_tokens:
            reason[reason == LIVE] = LENGTH
        decision = policy.decide(result, rows, StopHits(reason))
        assert decision.done == (len(decision.picks) == 0)
        assert (decision.parents == result.rows[decision.picks]).all()
        assert (decision.tokens == result.tokens[decision.picks]).all()
        assert (reason[decision.picks] == LIVE).all()
        assert len(decision.picks) <= policy.max_rows
        history.append(
            decision.parents,
            decision.tokens,
            result.logprobs[decision.picks],
            result.selection_logprobs[decision.picks],
        )
        out.finished.append(decision.finished)
        numbers = np.arange(len(decision.picks), dtype=np.int32)
        out.tokens.append([tuple(t) for t in history.tokens(history.steps, numbers).tolist()])
        if decision.done:
            break
        rows, last = decision.next_rows(rows), decision.tokens
    out.batch = policy.results()
    assert len(out.batch) <= policy.max_results
    out.paths = history.paths(out.batch)
    out.results = [
        (tuple(p.tokens.tolist()), float(s), int(r))
        for p, s, r in zip(out.paths, out.batch.score, out.batch.reason, strict=True)
    ]
    return out


def answer(choice: Choice, logprobs: NDArray[np.float32]) -> SelectionResult:
    """What the sampler answers, the obvious way. logprobs [R, V]."""
    if isinstance(choice, Draw):
        return _draw(choice, logprobs)
    if isinstance(choice, GumbelTopK):
        return _perturbed(choice, logprobs)
    assert isinstance(choice, (TopK, RowTopK)), choice
    return _top_k(choice, logprobs) if isinstance(choice, TopK) else _row_top_k(choice, logprobs)


def _draw(choice: Draw, logprobs: NDArray[np.float32]) -> SelectionResult:
    own = logprobs[choice.source]
    if choice.temperature == 0.0:
        tokens = own.argmax(-1)
    else:
        cumulative = np.exp(own.astype(np.float64)).cumsum(-1)
        u = lineage.uniform(choice.lineage, choice.position) * cumulative[:, -1]
        tokens = (cumulative <= u[:, None]).sum(-1)
    chosen = own[np.arange(len(own)), tokens]
    zeros = np.zeros(len(own), np.float32)
    return SelectionResult(0, choice.source, tokens.astype(np.int64), chosen, chosen, zeros)


def _perturbed(choice: GumbelTopK, logprobs: NDArray[np.float32]) -> SelectionResult:
    """Temperature is the only filter here."""
    wide = logprobs.astype(np.float64) / choice.temperature
    own = (wide - np.log(np.exp(wide).sum(-1, keepdims=True))).astype(np.float32)
    found: list[tuple[float, int, int]] = []
    for row, line in enumerate(own):
        base, best = float(choice.logprob[row]), float(choice.gumbel[row])
        key = int(choice.lineage[row])
        tokens, values = perturbed_row(line, base, best, key, choice.position, choice.k)
        found += [(-float(v), row, int(t)) for t, v in zip(tokens, values, strict=True)]
    found = sorted(found)[: choice.k]
    scores = np.array([-f[0] for f in found], np.float32)
    rows = np.array([f[1] for f in found], np.int32)
    ids = np.array([f[2] for f in found], np.int64)
    return SelectionResult(0, rows, ids, logprobs[rows, ids], own[rows, ids], scores)


def _top_k(choice: TopK, logprobs: NDArray[np.float32]) -> SelectionResult:
    assert len(choice.base) == len(logprobs)
    scores = choice.base[:, None] + logprobs
    rows, tokens = np.nonzero(scores > -np.inf)
    # nonzero is in order of row, then token, which a stable sort keeps among ties.
    order = np.argsort(-scores[rows, tokens], kind="stable")
    rows, tokens = rows[order], tokens[order]
    k = choice.k
    if choice.finishing is not None:
        ends = choice.finishing.table[choice.finishing.state[rows], tokens]
        if choice.finishing_ids is not None:
            ends |= np.isin(tokens, choice.finishing_ids)
        while k < len(rows) and (~ends[:k]).sum() < choice.live:
            k *= 2
    rows, tokens = rows[:k].astype(np.int32), tokens[:k]
    own = logprobs[rows, tokens]
    return SelectionResult(0, rows, tokens, own, own, scores[rows, tokens])


def _row_top_k(choice: RowTopK, logprobs: NDArray[np.float32]) -> SelectionResult:
    assert len(choice.base) == len(logprobs)
    order = np.argsort(-logprobs, axis=1, kind="stable")
    legal = (logprobs > -np.inf).sum(1)
    k = choice.k
    if choice.finishing is not None:
        ends = choice.finishing.table[choice.finishing.state]
        if choice.finishing_ids is not None:
            ends[:, choice.finishing_ids] = True
        going_on = ~np.take_along_axis(ends, order, 1) & (np.arange(order.shape[1]) < legal[:, None])
        while ((going_on[:, :k].sum(1) < choice.live) & (k < legal)).any():
            k *= 2
    listed: Bools = np.arange(order.shape[1]) < np.minimum(k, legal)[:, None]
    rows, at = np.nonzero(listed)
    rows, tokens = rows.astype(np.int32), order[rows, at]
    own = logprobs[rows, tokens]
    return SelectionResult(0, rows, tokens, own, own, choice.base[rows] + own)
