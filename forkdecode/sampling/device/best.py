"""TopK and RowTopK requests on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from forkdecode.sampling import beams, row_best
from forkdecode.sampling.continuations import result_of
from forkdecode.sampling.device.kinds import Asked, Kind, Tops, not_finite
from forkdecode.sampling.device.values import Batch
from forkdecode.step import RowTopK, SelectionResult, TopK
from forkdecode_kernels.calls import Call, Source, Steps, in_parts, together
from forkdecode_kernels.row_candidates import rows_call
from forkdecode_kernels.topk import Continuations, RowGroups, groups_call

Begin = Callable[[Asked[Any]], Call[list[Continuations]]]


def _over_all_rows(asked: Asked[TopK]) -> Call[list[Continuations]]:
    first = asked.rows[asked.batch.starts[:-1]]
    groups = RowGroups(first, np.array(asked.sizes), np.array([c.k for c in asked.choices]))
    base = np.concatenate([c.base for c in asked.choices]).astype(np.float32)
    return groups_call(groups, base, asked.vocab, normalized=asked.changed)


@in_parts
def _of_each_row(asked: Asked[RowTopK]) -> Steps[list[Continuations]]:
    base = np.concatenate([c.base for c in asked.choices]).astype(np.float32)
    k = asked.of_rows([c.k for c in asked.choices])
    part = rows_call(asked.rows, k, base, asked.vocab, normalized=asked.changed)
    source, sent = yield part.arrays
    told = yield part.launch(source, sent)
    return row_best.split(part.read(told), asked.batch.starts)


def _results(
    begin: Begin,
    enlarged: Callable[..., Continuations],
    asked: Asked[Any],
    found: Sequence[Continuations],
    tops: Tops,
    source: Source,
) -> list[SelectionResult]:
    """Where too many candidates end, a group asks for more by itself: one more copy each way."""
    results = []
    for i, ((request, choice), best) in enumerate(zip(asked.pairs, found, strict=True)):
        if not best.valid:
            results.append(SelectionResult.failed(request.group_id, not_finite(asked, request)))
            continue
        whole = enlarged(best, request, choice, asked.vocab, partial(_again, begin, asked, i, source))
        raw = whole.logprobs if whole.raw is None else whole.raw
        results.append(result_of(request, whole, raw, tops.get(i)))
    return results


def _again(begin: Begin, asked: Asked[Any], index: int, source: Source, k: int) -> Continuations:
    """The k best of one group."""
    one = replace(
        asked,
        batch=Batch.of([asked.batch.requests[index]]),
        choices=[replace(asked.choices[index], k=k)],
        rows=asked.rows[asked.batch.own(index)],
    )
    return together([(begin(one), source)], source.values.device)[0][0]


BEAMS: Kind[TopK] = Kind(_over_all_rows, True, None, partial(_results, _over_all_rows, beams.enlarged))
ROWS: Kind[RowTopK] = Kind(_of_each_row, True, None, partial(_results, _of_each_row, row_best.enlarged))
