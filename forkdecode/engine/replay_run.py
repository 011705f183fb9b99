"""One run of a journal, replayed record by record."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forkdecode.engine.journal import Run, summary
from forkdecode.engine.plan_image import Difference, Image, first_difference, image_of
from forkdecode.engine.shadow import PlanError, ShadowCache, check_plan
from forkdecode.errors import ForkdecodeError
from forkdecode.kv.block_pool import BlockAccountingError
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.wire.requests import SentRequest, SentTerms, joined, terms_of

_BY_TOKEN = ("slots", "positions", "token_ids")
_BLOCKS = ("copies", "swap_out", "swap_in", "zero_blocks", "segments")
"""Parts of a plan whose entries are blocks."""


class Broken(Exception):  # noqa: N818 - it is a place, not a fault of the program
    """Where a replay ends. See replay.Break."""

    def __init__(self, where: str, field: str, expected: Any, got: Any, requests: Iterable[str] = ()) -> None:
        super().__init__(f"{where}: {field}: expected {expected}, got {got}")
        self.where = where
        self.field = field
        self.expected = expected
        self.got = got
        self.requests = tuple(dict.fromkeys(requests))


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What was replayed of one run of an engine. tokens: generated. peak_blocks: held by requests at one
    time. steps counts those that failed (failed_steps) and those with nothing to run, too. running and
    waiting: requests at its end. ended: "closed", "died", or "cut off" where the record just stops."""

    version: str
    model: str | None
    started: float
    num_blocks: int
    block_size: int
    steps: int
    failed_steps: int
    requests: int
    cancels: int
    tokens: int
    peak_blocks: int
    copies: int
    preemptions: int
    swapped_blocks: int
    running: int
    waiting: int
    ended: str


class RunReplay:
    """A scheduler that is led through what another one did."""

    def __init__(self, run: Run, clock: Callable[[], float]) -> None:
        self._run = run
        self._scheduler = run.scheduler(clock)
        self._shadow = ShadowCache(run.num_blocks, run.host_slots, run.config.block_size)
        self._tokens: TokenBytes | None = None
        self._terms: SentTerms | None = None
        """Of the request before."""
        self._automata: dict[int, StopAutomaton] = {}
        self._names: list[str] = []
        """By group number - 1."""
        self._plan: StepPlan | None = None
        self._answer: StepOutput | Exception | None = None
        self._in_step = False
        self._cancels = self._failed_steps = self._peak = 0
        self._ended = "cut off"
        self.step = 0
        self.events: Sequence[GroupEvent] = ()
        """Of the record before."""

    @property
    def scheduler(self) -> Scheduler:
        """To look at between records."""
        return self._scheduler

    @property
    def tokens(self) -> TokenBytes | None:
        """The vocabulary, once a request had stop strings."""
        return self._tokens

    def is_past(self, until: int) -> bool:
        """Whether step `until` is over."""
        return self.step >= until and not self._in_step

    def take(self, kind: str, parts: Sequence[Any]) -> None:
        """One record. Raises Broken."""
        take = getattr(self, f"_take_{kind}", None)
        if take is None:
            raise Broken("journal", "record", "a record of this version", kind)
        try:
            take(*parts)
        except (TypeError, ValueError, AttributeError, LookupError, zlib.error) as error:
            raise Broken(
                "journal", kind, "what this version writes", f"{type(error).__name__}: {error}"
            ) from error

    def summary(self) -> RunSummary:
        """As far as it came."""
        stats = self._scheduler.stats()
        return RunSummary(
            version=self._run.version,
            model=None if self._run.info is None else self._run.info.name,
            started=self._run.started,
            num_blocks=self._run.num_blocks,
            block_size=self._run.config.block_size,
            steps=self.step,
            failed_steps=self._failed_steps,
            requests=len(self._names),
            cancels=self._cancels,
            tokens=stats.generated_tokens,
            peak_blocks=self._peak,
            copies=stats.copies,
            preemptions=stats.preemptions,
            swapped_blocks=stats.swapped_blocks,
            running=stats.running_groups,
            waiting=stats.waiting_groups,
            ended=self._ended,
        )

    # -- requests ---------------------------------------------------------------------------------

    def _take_tokens(self, flat: bytes, lengths: Any, strips: bool) -> None:
        ends = np.cumsum(lengths, dtype=np.int64)
        raw = np.frombuffer(zlib.decompress(flat), np.uint8)
        self._tokens = TokenBytes(raw, ends - lengths, lengths, strips)

    def _take_add(self, request: DecodeRequest, automaton: int | None) -> None:
        self._terms = terms_of(request)
        if automaton is not None:
            request = dataclasses.replace(request, automaton=self._automaton(automaton, request))
        try:
            self._scheduler.add(request)
        except ForkdecodeError as error:
            raise Broken("request", "error", "none", _said(error), [request.request_id]) from error
        self._names.append(request.request_id)

    def _take_like(self, sent: SentRequest, automaton: int | None) -> None:
        """A request of the same terms as the one before."""
        if self._terms is None:
            raise Broken("journal", "like", "a request before it", "none", [sent.request_id])
        self._take_add(joined(self._terms, sent), automaton)

    def _automaton(self, number: int, request: DecodeRequest) -> StopAutomaton:
        if number not in self._automata:
            if self._tokens is None:
                raise Broken(
                    "journal", "tokens", "before the first stop string", "none", [request.request_id]
                )
            self._automata[number] = StopAutomaton(request.options.stop, self._tokens)
        return self._automata[number]

    def _take_cancel(self, request_id: str, events: Any) -> None:
        self._cancels += 1
        self._compare_events(events, self._scheduler.cancel(request_id))
        self._check_blocks()

    def _take_tree(self, op: TreeOp) -> None:
        self._scheduler.tree(op)
        self._check_blocks()

    # -- a step -----------------------------------------------------------------------------------

    def _take_plan(self, step: int, at: float, image: Image | None) -> None:
        if self._in_step or step != self.step + 1:
            raise Broken("journal", "step", self.step + 1, step)
        plan = self._schedule()
        got = None if plan is None else image_of(plan)
        if image is not None and got is not None:
            difference = first_difference(image, got)
            if difference is not None:
                names = self._concerned(difference, image, got)
                raise Broken("plan", difference.field, difference.expected, difference.got, names)
        elif (image is None) != (got is None):
            raise Broken("plan", "plan", *("none" if x is None else "a plan" for x in (image, got)))
        if plan is not None:
            self._check_rules(plan)

    def _take_output(self, output: StepOutput) -> None:
        self._take_answer(output)

    def _take_error(self, kind: str, text: str) -> None:
        self._failed_steps += 1
        self._take_answer(RuntimeError(f"{kind}: {text}"))

    def _take_answer(self, answer: StepOutput | Exception) -> None:
        if self._plan is None or self._answer is not None or not isinstance(answer, (StepOutput, Exception)):
            raise Broken("journal", "output", "one answer to each plan", type(answer).__name__)
        self._answer = answer

    def _take_events(self, events: Any) -> None:
        self._compare_events(events, self._commit())
        self._check_blocks()

    def _schedule(self) -> StepPlan | None:
        self.step += 1
        self._in_step, self._answer = True, None
        try:
            self._plan = self._scheduler.schedule()
        except Exception as error:
            raise Broken("schedule", "error", "none", _said(error)) from error
        return self._plan

    def _commit(self) -> list[GroupEvent]:
        """Carries out the recorded answer."""
        plan, answer = self._plan, self._answer
        if not self._in_step or (plan is None) != (answer is None):
            raise Broken("journal", "events", "after a step and its answer", "elsewhere")
        self._in_step, self._plan = False, None
        try:
            if answer is None:
                return self._scheduler.drain_failures()
            if isinstance(answer, Exception):
                return self._scheduler.abort(answer)
            return self._scheduler.commit(answer)
        except Exception as error:
            raise Broken("commit", "error", "none", _said(error)) from error

    # -- ends -------------------------------------------------------------------------------------

    def _take_died(self, phase: str, kind: str, text: str) -> None:
        """The engine's loop broke here. That is a break, whether the replay breaks or not."""
        self._ended = "died"
        again = "the replay goes on"
        try:
            if phase == "schedule":
                self._schedule()
            elif phase == "commit":
                self._commit()
        except Broken as same:
            again = f"the replay: {same.got}"
        raise Broken("died", phase, "no error", f"{kind}: {text} ({again})")

    def _take_gap(self, kind: str, text: str) -> None:
        raise Broken("journal", kind, "a record", f"the writer could not encode it: {text}")

    def _take_full(self) -> None:
        self._ended = "full"

    def _take_end(self, stats: EngineStats) -> None:
        self._ended = "closed"
        got = self._scheduler.stats()
        for f in dataclasses.fields(stats):
            pair = getattr(stats, f.name), getattr(got, f.name)
            if pair[0] != pair[1]:
                raise Broken("stats", f.name, *pair)

    # -- checks -----------------------------------------------------------------------------------

    def _check_rules(self, plan: StepPlan) -> None:
        groups = {group.number: group for group in self._scheduler.groups.values()}
        try:
            check_plan(plan, self._scheduler.pool)
            self._shadow.run(plan)
            self._shadow.check(plan, groups)
        except PlanError as error:
            names = [self._name(number) for number in error.groups]
            raise Broken("rules", error.field, "a plan that keeps the rules", str(error), names) from error
        self._peak = max(self._peak, self._scheduler.pool.num_blocks - self._scheduler.pool.num_available)

    def _check_blocks(self) -> None:
        try:
            self._scheduler.check()
        except BlockAccountingError as error:
            raise Broken("blocks", "counts", "those of the holders", str(error)) from error

    def _compare_events(self, expected: Any, events: Sequence[GroupEvent]) -> None:
        self.events = events
        difference = first_difference(expected, summary(events), ("events",))
        if difference is not None:
            at = difference.path[1] if len(difference.path) > 1 else 0
            names = [one[int(at)][1] for one in (expected, summary(events)) if len(one) > int(at)]
            raise Broken("events", difference.field, difference.expected, difference.got, names)

    def _concerned(self, difference: Difference, *images: Image) -> list[str]:
        """Requests that a difference between plans is about: those whose part of the plan it is, and
        those that hold the blocks it names."""
        part, *index = difference.path
        names = [self._name(number) for image in images for number in _groups_of(image, part, index)]
        blocks = {v for v in (difference.expected, difference.got) if isinstance(v, int)}
        if part in _BLOCKS or "tails" in index or "trunk" in index:
            names += self._holders(blocks)
        return names

    def _name(self, number: int) -> str:
        return self._names[number - 1] if 0 < number <= len(self._names) else f"group {number}"

    def _holders(self, blocks: set[int]) -> list[str]:
        return [
            name
            for name, group in self._scheduler.groups.items()
            if group.table is not None and blocks.intersection(group.table.references().tolist())
        ]


def _groups_of(image: Image, part: str | int, index: Sequence[str | int]) -> list[int]:
    """The groups that own an entry of a part of an image."""
    at = index[0] if index else None
    if not isinstance(at, int) or part not in (*_BY_TOKEN, "decodes", "segments", "selections"):
        return []
    if part == "selections":
        return [s["group_id"] for s in image[part][at : at + 1]]
    if part in _BY_TOKEN:
        first, last = at, at
    else:
        starts = [piece["token_start"] for piece in image[str(part)][at : at + 1]]
        first, last = (starts[0], starts[0]) if starts else (0, -1)
    rows = np.flatnonzero((image["logits_index"] >= first) & (image["logits_index"] <= last))
    return [
        s["group_id"]
        for row in rows.tolist()
        for s in image["selections"]
        if s["logits_start"] <= row < s["logits_start"] + s["rows"]
    ]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
