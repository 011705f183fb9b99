"""From next-token logits to candidates: the one entry that the model runner calls.

Groups fail alone: whatever goes wrong with one becomes the error of its result. What a group gets
depends on its own rows and request only, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from forkdecode.sampling.beams import check_topk, topk_plain, topk_processed
from forkdecode.sampling.group_logits import is_active
from forkdecode.sampling.sampler import check_draw, draw_plain, draw_processed
from forkdecode.step import Draw, SelectionRequest, SelectionResult, TopK

Choice = TypeVar("Choice", Draw, TopK)


def select(
    logits: torch.Tensor, requests: Sequence[SelectionRequest], *, threads: int | None = None
) -> tuple[SelectionResult, ...]:
    """One result for each request, in order.

    logits [M, V]: any float type, any device; never written to. threads: how many to use on the
    CPU, torch's own number by default; no result depends on it.
    """
    workers = torch.get_num_threads() if threads is None else threads
    done: dict[int, SelectionResult] = {}
    draws: list[tuple[int, SelectionRequest, Draw]] = []
    topks: list[tuple[int, SelectionRequest, TopK]] = []
    for i, request in enumerate(requests):
        choice = request.choice
        if isinstance(choice, Draw):
            draws.append((i, request, choice))
        else:
            topks.append((i, request, choice))
    _serve(
        logits, draws, check=check_draw, together=draw_plain, alone=draw_processed, threads=workers, done=done
    )
    _serve(
        logits, topks, check=check_topk, together=topk_plain, alone=topk_processed, threads=workers, done=done
    )
    return tuple(done[i] for i in range(len(requests)))


def _serve(
    logits: torch.Tensor,
    work: Sequence[tuple[int, SelectionRequest, Choice]],
    *,
    check: Callable[[torch.Tensor, SelectionRequest, Choice], None],
    together: Callable[..., list[SelectionResult]],
    alone: Callable[..., SelectionResult],
    threads: int,
    done: dict[int, SelectionResult],
) -> None:
    plain: list[tuple[int, SelectionRequest, Choice]] = []
    for i, request, choice in work:
        try:
            check(logits, request, choice)
            if is_active(request) or request.num_logprobs is not None:
                done[i] = alone(logits, request, choice, threads=threads)
            else:
                plain.append((i, request, choice))
        except Exception as error:
            done[i] = _failed(request, error)
    _serve_together(logits, plain, together, threads, done)


def _serve_together(
    logits: torch.Tensor,
    plain: Sequence[tuple[int, SelectionRequest, Choice]],
    together: Callable[..., list[SelectionResult]],
    threads: int,
    done: dict[int, SelectionResult],
) -> None:
    if not plain:
        return
    try:
        results = together(logits, [(request, choice) for _, request, choice in plain], threads=threads)
        done.update(zip((i for i, _, _ in plain), results, strict=True))
    except Exception as error:
        if len(plain) == 1:
            done[plain[0][0]] = _failed(plain[0][1], error)
            return
        for one in plain:
            _serve_together(logits, [one], together, threads, done)


def _failed(request: SelectionRequest, error: Exception) -> SelectionResult:
    text = str(error) or type(error).__name__
    return SelectionResult.failed(request.group_id, text)
