"""One run of a journal, replayed record by record."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forkdecode.engine.journal import Run
from forkdecode.engine.plan_image import Image
from forkdecode.engine.replay_checks import Broken, counts_agree, keeps_rules, same_events, same_plan
from forkdecode.engine.shadow import ShadowCache
from forkdecode.errors import ForkdecodeError
from forkdecode.results import EngineStats
from forkdecode.scheduler.events import GroupEvent
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.scheduler.scheduler import Scheduler
from forkdecode.step import StepOutput, StepPlan
from forkdecode.text.stop import StopAutomaton
from forkdecode.text.token_bytes import TokenBytes
from forkdecode.wire.requests import SentRequest, SentTerms, joined, terms_of


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
        counts_agree(self._scheduler)

    def _take_tree(self, op: TreeOp) -> None:
        self._scheduler.tree(op)
        counts_agree(self._scheduler)

    # -- a step -----------------------------------------------------------------------------------

    def _take_plan(self, step: int, at: float, image: Image | None) -> None:
        if self._in_step or step != self.step + 1:
            raise Broken("journal", "step", self.step + 1, step)
        plan = self._schedule()
        same_plan(image, plan, self._scheduler, self._name)
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
        counts_agree(self._scheduler)

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
        keeps_rules(plan, self._scheduler, self._shadow, self._name)
        self._peak = max(self._peak, self._scheduler.pool.num_blocks - self._scheduler.pool.num_available)

    def _compare_events(self, expected: Any, events: Sequence[GroupEvent]) -> None:
        self.events = events
        same_events(expected, events)

    def _name(self, number: int) -> str:
        return self._names[number - 1] if 0 < number <= len(self._names) else f"group {number}"


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
