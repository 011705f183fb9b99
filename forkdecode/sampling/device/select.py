"""The selections of a step on a device: groups of every kind, with one copy there and one back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from forkdecode.choices import F64
from forkdecode.sampling.allowed import settled
from forkdecode.sampling.device.best import BEAMS, ROWS
from forkdecode.sampling.device.draws import DRAWS, GATHERS
from forkdecode.sampling.device.kinds import Asked, Kind, Tops
from forkdecode.sampling.device.perturbed import PERTURBED
from forkdecode.sampling.device.tops import Likeliest, likeliest
from forkdecode.sampling.device.values import Batch, changed_values
from forkdecode.sampling.group_logits import failed, is_active, where
from forkdecode.sampling.kinds import KINDS
from forkdecode.step import (
    Choice,
    Draw,
    Gather,
    GumbelTopK,
    RowTopK,
    SelectionRequest,
    SelectionResult,
    TopK,
    TopLogprobs,
)
from forkdecode_kernels.calls import Call, Keeping, Source, Steps, begun, in_parts, taken
from forkdecode_kernels.draw import Distribution, is_sorted

_KINDS: dict[type[Choice], Kind[Any]] = {
    Draw: DRAWS,
    TopK: BEAMS,
    RowTopK: ROWS,
    GumbelTopK: PERTURBED,
    Gather: GATHERS,
}


class Selecting(NamedTuple):
    """Selections under way. results: waits for them. drawn: on the device, the token that each row of the
    logits draws, below 0 where it draws none; None unless each draws one, all in one way."""

    results: Callable[[], tuple[SelectionResult, ...]]
    drawn: torch.Tensor | None = None


def select_on_device(
    logits: torch.Tensor, requests: Sequence[SelectionRequest]
) -> tuple[SelectionResult, ...]:
    """As `select`. What a group gets depends on its own rows and request alone."""
    return begin_on_device(logits, requests).results()


def begin_on_device(logits: torch.Tensor, requests: Sequence[SelectionRequest]) -> Selecting:
    """Starts the selections. Constraints are waited for first: the device is at the forward pass by then."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    done: dict[int, SelectionResult] = {}
    ready: list[tuple[int, SelectionRequest]] = []
    for i, request in enumerate(requests):
        try:
            found = settled(request)
            KINDS[type(found.choice)].check(logits, found, found.choice)
            ready.append((i, found))
        except Exception as error:
            done[i] = failed(request, error)
    finish, drawn = _begin(logits, ready, done)

    def results() -> tuple[SelectionResult, ...]:
        finish()
        return tuple(done[i] for i in range(len(requests)))

    one_each = drawn is not None and len(drawn) == len(logits) and all(map(_stays, requests))
    return Selecting(results, drawn if one_each else None)


def _stays(request: SelectionRequest) -> bool:
    """Whether each row of a group draws one token."""
    source = request.choice.source if isinstance(request.choice, Draw) else ()
    return np.array_equal(source, np.arange(request.rows))


def _begin(
    logits: torch.Tensor, work: Sequence[tuple[int, SelectionRequest]], done: dict[int, SelectionResult]
) -> tuple[Callable[[], None], torch.Tensor | None]:
    """Starts the selections of `work`: what has their results done, and, where all are draws of one kind, the
    tokens on the device."""
    sets: dict[tuple[Any, ...], list[tuple[int, SelectionRequest]]] = {}
    for i, request in work:
        sets.setdefault(_way(request), []).append((i, request))
    try:
        calls = [_chosen(way, [r for _, r in own], logits.shape[1]) for way, own in sets.items()]
        read = begun([(call, Source(logits)) for call in calls], logits.device)
    except Exception as error:
        _blame(logits, work, error, done)
        return lambda: None, None

    def finish() -> None:
        try:
            for own, results in zip(sets.values(), read(), strict=True):
                done.update(zip((i for i, _ in own), results, strict=True))
        except Exception as error:
            _blame(logits, work, error, done)

    return finish, calls[0].kept if len(calls) == 1 else None


def _blame(
    logits: torch.Tensor,
    work: Sequence[tuple[int, SelectionRequest]],
    error: Exception,
    done: dict[int, SelectionResult],
) -> None:
    """One of them is at fault: alone, each of the others gets what it would have got together."""
    if len(work) == 1:
        done[work[0][0]] = failed(work[0][1], error)
        return
    for one in work:
        _begin(logits, [one], done)[0]()


def _way(request: SelectionRequest) -> tuple[Any, ...]:
    """What groups that are chosen for by one call have in common."""
    choice = request.choice
    by_sorts = isinstance(choice, Draw | GumbelTopK) and is_sorted(choice.typical_p)
    changed = is_active(request) and not isinstance(choice, Gather)
    return type(choice), changed, by_sorts


@in_parts
def _chosen(
    way: tuple[Any, ...], requests: Sequence[SelectionRequest], vocab: int
) -> Steps[list[SelectionResult]]:
    """Groups of one kind: their values, where they are changed; the call itself; their likeliest tokens
    before and after."""
    kind, changed = _KINDS[way[0]], way[1]
    batch = Batch.of(requests)
    every = np.arange(len(batch.places))
    asked: Asked[Any] = Asked(
        batch, [r.choice for r in requests], every if changed else batch.places, vocab, changed
    )
    values = changed_values(batch, vocab, log_softmax=kind.log_softmax) if changed else None
    main = kind.begin(asked)
    before = likeliest(batch, batch.places, vocab, normalized=False)
    distinct = changed or kind.shown is not None
    after = likeliest(batch, every, vocab, normalized=True) if distinct else None
    calls: list[Call[Any]] = [c for c in (values, main, before, after) if c is not None]
    source, sent = yield [a for c in calls for a in c.arrays]
    take = taken(sent)
    told: list[list[torch.Tensor]] = []
    chosen_from = source
    if values is not None:
        told.append(values.launch(source, take(len(values.arrays))))
        chosen_from = values.kept
    told.append(main.launch(chosen_from, take(len(main.arrays))))
    told.append(before.launch(source, take(len(before.arrays))))
    if after is not None:
        shown = kind.shown(main.kept) if kind.shown is not None else None
        of = chosen_from if shown is None else Source(shown)
        told.append(after.launch(of, take(len(after.arrays))))
    drawn = main.kept.tokens if isinstance(main.kept, Distribution) else None
    take = taken((yield Keeping([t for tensors in told for t in tensors], drawn)))
    read = [call.read(take(len(tensors))) for call, tensors in zip(calls, told, strict=True)]
    sums = read.pop(0) if values is not None else None
    tops = _tops(read[1], read[2] if after is not None else read[1])
    results = kind.results(asked, read[0], tops, chosen_from)
    return results if sums is None else _checked(batch, sums, results)


def _tops(before: Likeliest, after: Likeliest) -> Tops:
    return {i: TopLogprobs(*before[i], *after[i]) for i in before}


def _checked(batch: Batch, sums: F64, results: list[SelectionResult]) -> list[SelectionResult]:
    """The results, but of groups whose logits were not finite before they were changed."""
    bad = np.isnan(sums)
    return [
        SelectionResult.failed(request.group_id, f"non-finite logits {where(request)}")
        if bad[batch.own(i)].any()
        else result
        for i, (request, result) in enumerate(zip(batch.requests, results, strict=True))
    ]
