"""A request as the scheduler sees it: token ids only, everything checked and resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from forkdecode.allowed import Constraint
from forkdecode.errors import CapacityError
from forkdecode.step import I64, ProcessorSpec
from forkdecode.text.stop import StopAutomaton
from forkdecode.types import BestOf, Continuations, Options, Sample, Strategy


@dataclass(frozen=True, slots=True)
class NodeRef:
    """A node of a tree: a path of tokens that never changes. The engine does not know the path, only what
    KV of it is held. A number names one path for good."""

    tree: str
    node: int


@dataclass(frozen=True, slots=True)
class Share:
    """Each target holds from now on what `source` holds of its first `length` tokens."""

    source: NodeRef
    targets: tuple[NodeRef, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Release:
    """These nodes hold nothing any more, nor will they by what runs now. nodes None: the whole tree."""

    tree: str
    nodes: tuple[int, ...] | None = None


TreeOp: TypeAlias = Share | Release
"""Takes effect between two steps. Nodes that hold nothing, unknown ones too, are nothing to share and
nothing to release."""


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """prompt [P] int64, P >= 1. eos_ids and stop_ids end a candidate; eos_ids is empty under
    ignore_eos. stream: whether per-step events are wanted besides the outcome.

    origin: the node whose path the prompt is. What it holds is not computed again, and once the prompt
    is computed the node holds all of it but the last token. keep: candidate i leaves the KV of its path
    but the last token with the node numbered keep.node + i, whatever it ended by; one that is not among
    the candidates of the last event leaves nothing. Only where candidates are numbered from the start:
    not for beams. So a group that is cancelled or runs out of blocks leaves what it returns, and one that
    fails leaves nothing.
    """

    request_id: str
    prompt: I64
    strategy: Strategy | Continuations
    options: Options
    seed: int
    processors: ProcessorSpec
    eos_ids: I64
    stop_ids: I64
    automaton: StopAutomaton | None
    stream: bool = False
    origin: NodeRef | None = None
    keep: NodeRef | None = None
    constraint: Constraint | None = None
    """Of options.constraint; None in a replay, where nothing is selected, too."""
    constraint_start: int | None = None
    """Tokens of the prompt before those that the constraint holds for already, as `constraint` knows; None:
    it begins after the prompt."""
    catalogue: str | None = None
    """The digest of the catalogue that the constraint is from, so that who makes it anew takes the same."""

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)


def worst_case_blocks(prompt_len: int, max_tokens: int, rows: int, block_size: int) -> int:
    """Blocks that a group can hold at most at one time, if its rows came to share nothing but the
    full blocks of the prompt: ceil(P/S) + W * (ceil((max_tokens + P mod S) / S) + 1).
    """
    tail = -(-(max_tokens + prompt_len % block_size) // block_size)
    return -(-prompt_len // block_size) + rows * (tail + 1)


def most_blocks(request: DecodeRequest, rows: int, block_size: int) -> int:
    """worst_case_blocks of a request of at most `rows` rows."""
    strategy, prompt_len = request.strategy, request.prompt_len
    if not isinstance(strategy, Continuations):
        return worst_case_blocks(prompt_len, request.options.max_tokens, rows, block_size)
    # Rows grow together, and those of short continuations are gone when the long ones grow long.
    lengths = sorted(map(len, strategy.token_ids), reverse=True)
    return max(
        worst_case_blocks(prompt_len, length, live, block_size) for live, length in enumerate(lengths, 1)
    )


def check_capacity(
    request: DecodeRequest, rows: int, num_blocks: int, block_size: int, *, overcommit: bool
) -> None:
    """Raises CapacityError when the request could run out of blocks even alone in the pool; under
    `overcommit` only when it cannot even start."""
    if overcommit:
        needed = -(-request.prompt_len // block_size) + rows
    else:
        needed = most_blocks(request, rows, block_size)
    if needed <= num_blocks:
        return
    many = _count_of(request.strategy)
    if overcommit:
        what = f"its prompt and the first step of {rows} {many[1]} need {needed} blocks"
    else:
        what = (
            f"{request.prompt_len} prompt tokens and {rows} {many[1]} of up to "
            f"{request.options.max_tokens} tokens can need {needed} blocks of {block_size} tokens"
        )
    field, limit = _too_much(request, many, num_blocks, block_size, overcommit)
    raise CapacityError(
        f"{field}: {what}, but the pool has {num_blocks}; {limit}, or give the engine more kv_memory"
        + ("" if overcommit else " (overcommit admits it regardless)"),
        field=field,
        limit=limit,
        request_id=request.request_id,
    )


def _count_of(strategy: Strategy | Continuations) -> tuple[str, str]:
    """The field that says how many rows there are, and what those are called."""
    if isinstance(strategy, Continuations):
        return "continuations", "continuations"
    name = "best_of" if isinstance(strategy, BestOf) else "n" if isinstance(strategy, Sample) else "width"
    return name, "candidates"


def _too_much(
    request: DecodeRequest, many: tuple[str, str], num_blocks: int, block_size: int, overcommit: bool
) -> tuple[str, str]:
    """The field to make smaller, and what would fit: how many of this length, if one does, else how long."""
    prompt, strategy = -(-request.prompt_len // block_size), request.strategy
    if prompt + (1 if overcommit else 2) > num_blocks:
        return "prompt", "a shorter prompt"
    if overcommit:
        return many[0], f"at most {num_blocks - prompt} {many[1]} for this prompt"
    longest = max(map(len, strategy.token_ids)) if isinstance(strategy, Continuations) else 0
    length = longest or request.options.max_tokens
    each = worst_case_blocks(request.prompt_len, length, 1, block_size) - prompt
    if fits := (num_blocks - prompt) // each:
        return many[0], f"at most {fits} {many[1]} of {length} tokens fit for this prompt"
    room = (num_blocks - prompt - 1) * block_size - request.prompt_len % block_size
    return ("continuations" if longest else "max_tokens"), f"at most {room} tokens for this prompt"
