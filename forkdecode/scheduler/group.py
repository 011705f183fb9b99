"""The state of one sequence group: its rows, its history, where its KV lies, what it has cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forkdecode.kv.block_table import BlockTable
from forkdecode.kv.table_image import TableImage
from forkdecode.results import Usage
from forkdecode.scheduler.beam_stream import BeamStream
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.step import I32, I64, FinishMask, Gather, SelectionRequest
from forkdecode.strategies.history import History
from forkdecode.strategies.policy import GroupRows, Policy


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens start..end of one row whose KV is still to be computed."""

    row: int
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Parked:
    """A preempted group: the shape of its table and, when swapped out, its host slots and the
    spans that were still to be computed."""

    image: TableImage
    host_slots: I32 | None
    pending: tuple[Span, ...]


@dataclass(slots=True)
class Costs:
    """What becomes the request's Usage. Times in seconds of the scheduler's clock."""

    submitted: float
    admitted: float | None = None
    first_token: float | None = None
    cached_tokens: int = 0
    generated_tokens: int = 0
    peak_unshared: int = 0
    peak_unique: int = 0
    unshared_steps: int = 0
    unique_steps: int = 0
    copies: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    swapped_blocks: int = 0
    steps: int = 0

    def count_blocks(self, unshared: int, unique: int) -> None:
        """Adds one step's blocks, as they stand while it runs."""
        self.peak_unshared = max(self.peak_unshared, unshared)
        self.peak_unique = max(self.peak_unique, unique)
        self.unshared_steps += unshared
        self.unique_steps += unique
        self.steps += 1

    def usage(self, prompt_tokens: int, generated: int, now: float) -> Usage:
        """generated: length of the longest candidate, for the time per token."""
        admitted = now if self.admitted is None else self.admitted
        first = now if self.first_token is None else self.first_token
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            peak_unshared_blocks=self.peak_unshared,
            peak_unique_blocks=self.peak_unique,
            unshared_block_steps=self.unshared_steps,
            unique_block_steps=self.unique_steps,
            copies=self.copies,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            swapped_blocks=self.swapped_blocks,
            steps=self.steps,
            queue_time=admitted - self.submitted,
            time_to_first_token=first - self.submitted,
            time_per_token=(now - first) / max(1, generated - 1),
            total_time=now - self.submitted,
        )


class SequenceGroup:
    """One request while it lives. Only the scheduler's parts change it.

    Of its R rows of n tokens each, KV at rest covers the first n - 1; `last_token` [R] is what the
    next decode step computes. table is None while the group waits; `parked` says how to resume.
    """

    def __init__(self, number: int, request: DecodeRequest, policy: Policy, now: float) -> None:
        self.number = number
        self.request = request
        self.policy = policy
        self.priority = request.options.priority
        self.waiting_since = 0
        self.last_step = -1
        self.admitted_step = -1
        self.table: BlockTable | None = None
        self.pending: list[Span] = []
        self.parked: Parked | None = None
        self.prompt_done = False
        self.kept: set[int] = set()
        """Candidates that have left a row with a node."""
        self.releases_seen = 0
        """Of its tree, as ReleasedNodes counts them."""
        self.leader: tuple[SequenceGroup, int] | None = None
        """While it waits for a group that computes the beginning of its prompt: that group, and how many
        tokens they have in common."""
        self.announced = False
        self.rows = GroupRows.prompt(request.prompt_len, request.seed)
        self.last_token: I64 = request.prompt[-1:].astype(np.int64)
        self.stop_state: I64 = np.zeros(1, np.int64)
        self.rows = replace(self.rows, finishing=self.finishing(self.stop_state, 0))
        self.constraint = None if request.constraint is None else request.constraint.rows()
        self.history = History()
        streams_beams = request.stream and not policy.streams_candidates
        self.beam_stream = BeamStream(request.options) if streams_beams else None
        self.costs = Costs(now)
        self._generated: I64 | None = None
        if request.processors.reads_history:
            self._generated = np.zeros((1, request.options.max_tokens), np.int64)
        self._replayed: tuple[int, I64] | None = None
        self.ends = tuple({*request.eos_ids.tolist(), *request.stop_ids.tolist()})
        """Tokens that end a candidate."""
        self.reorders = not policy.streams_candidates
        """Whether its next rows may continue any rows, as beams do."""
        self.plain = request.automaton is None and self.constraint is None and request.keep is None
        """Whether nothing but its policy, its length and `ends` has a say in what its rows become."""

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: who runs first and is preempted last."""
        return (-self.priority, self.number)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_rows(self) -> int:
        return self.rows.num_rows

    @property
    def length(self) -> int:
        """Tokens of each row, the one not computed yet included."""
        return self.rows.position

    @property
    def pending_tokens(self) -> int:
        """Tokens of spans still to be computed."""
        return sum(span.length for span in self.pending)

    @property
    def next_rows_bound(self) -> int:
        """The most blocks that the step after the current one can need."""
        policy, rows = self.policy, self.rows
        may_fork = rows.generated == 0 or not policy.streams_candidates
        return policy.max_rows if may_fork else len(rows.candidate)

    def tokens_of(self, span: Span) -> I64:
        """The token ids of a span of a row, prompt and generated."""
        prompt = self.request.prompt
        if span.end <= len(prompt):
            return prompt[span.start : span.end]
        if self._replayed is None or self._replayed[0] != self.rows.generated:
            everyone = np.arange(self.num_rows, dtype=np.int32)
            self._replayed = (self.rows.generated, self.history.tokens(self.rows.generated, everyone))
        row = np.concatenate([prompt, self._replayed[1][span.row]])
        return row[span.start : span.end]

    @property
    def ahead(self) -> int:
        """How many tokens each row can append in one step: 1 unless more are known beforehand."""
        forced = self.policy.forced
        return 1 if forced is None else forced.ahead(self.rows.candidate, self.rows.generated)

    def known_tokens(self, count: int) -> I64:
        """[R, count] What each row appends next; count is above 1 and at most `ahead`."""
        forced = self.policy.forced
        assert forced is not None, "only tokens that are known can be appended together"
        return forced.following(self.rows.candidate, self.rows.generated, count)

    def gather_requests(self, logits_start: int, tokens: I64) -> list[SelectionRequest]:
        """One request for each column of `tokens` [R, n], which all rows append in the step being
        planned; each reads R logits rows, the first from logits_start on."""
        first = self.selection_request(logits_start)
        rows = np.arange(self.num_rows, dtype=np.int32)
        return [
            replace(
                first,
                logits_start=logits_start + i * len(rows),
                choice=Gather(rows, column),
                num_generated=first.num_generated + i,
            )
            for i, column in enumerate(np.ascontiguousarray(tokens.T))
        ]

    def selection_request(self, logits_start: int, rows: GroupRows | None = None) -> SelectionRequest:
        """What to select from the logits rows logits_start .. + R of the step being planned. rows: those that
        it computes, where they are not the present ones."""
        rows = self.rows if rows is None else rows
        generated = rows.generated
        history = None if self._generated is None else self._generated[:, :generated]
        return SelectionRequest(
            group_id=self.number,
            logits_start=logits_start,
            rows=rows.num_rows,
            choice=self.policy.choose(rows),
            processors=self.request.processors,
            prompt=self.request.prompt,
            generated=history,
            num_generated=generated,
            num_logprobs=self.request.options.logprobs,
            allowed=None if self.constraint is None else self.constraint.allowed(),
        )

    def move(self, rows: GroupRows, parents: I32, tokens: I64, stop_state: I64) -> None:
        """The next rows: row i continues `parents[i]` with `tokens[i]`."""
        if self._generated is not None:
            at = self.rows.generated
            moved = np.empty((len(parents), self._generated.shape[1]), np.int64)
            moved[:, :at] = self._generated[parents, :at]
            moved[:, at] = tokens
            self._generated = moved
        if self.constraint is not None and len(parents):
            self.constraint = self.constraint.next(parents, tokens)
        self.rows = rows
        self.last_token = tokens
        self.stop_state = stop_state

    def finishing(self, stop_state: I64, generated: int) -> FinishMask | None:
        """The tokens that would end rows in `stop_state` by a stop string, if one may now."""
        automaton = self.request.automaton
        if automaton is None or self.policy.streams_candidates:
            return None
        if generated + 1 < self.request.options.min_tokens:
            return None
        return automaton.finish_table(stop_state)
