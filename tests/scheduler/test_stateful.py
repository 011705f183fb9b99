"""Random traffic on small pools: nothing leaks, nothing is lost, nobody disturbs anybody."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forkdecode.constraint_types import FromCatalogue
from forkdecode.errors import CancelledError, CapacityError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest
from forkdecode.types import Beam, BestOf, Greedy, Sample
from tests.constraints.toy import Table, items_table, random_table
from tests.scheduler.engines import (
    VOCAB,
    assert_idle,
    decode_alone,
    renamed,
    request,
    score_request,
    tokens,
    toy_engine,
)

STRATEGIES = st.one_of(
    st.just(Greedy()),
    st.builds(Sample, n=st.integers(1, 4), seed=st.integers(0, 5)),
    st.builds(BestOf, best_of=st.just(4), n=st.integers(1, 4), seed=st.integers(0, 5)),
    st.builds(Beam, width=st.integers(1, 5), early_stopping=st.sampled_from([True, False, "never"])),
)
CONTINUATIONS = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12), min_size=1, max_size=4)


class Traffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, DecodeRequest] = {}
        self.cancelled: set[str] = set()
        self.count = 0

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 8]),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        prefix_cache=st.booleans(),
        chunk=st.integers(1, 12),
    )
    def start(self, **config: Any) -> None:
        chunk = config.pop("chunk")
        mode = config.pop("mode")
        self.config = {**config, "max_prefill_tokens": chunk, "max_step_tokens": 2 * chunk}
        blocks = 240 // config["block_size"]
        self.engine = toy_engine(num_blocks=blocks, host_slots=blocks // 2, preemption=mode, **self.config)

    @rule(
        length=st.integers(1, 30),
        salt=st.integers(0, 2),
        strategy=STRATEGIES,
        max_tokens=st.integers(1, 10),
        priority=st.integers(0, 2),
    )
    def submit(self, length: int, salt: int, strategy: Any, max_tokens: int, priority: int) -> None:
        prompt = [(3 + salt + i // 7) % VOCAB for i in range(length)]  # prompts with common beginnings
        self.count += 1
        name = f"r{self.count}"
        self.send(request(name, prompt, strategy, eos=[1, 2], max_tokens=max_tokens, priority=priority))

    @rule(
        length=st.integers(1, 30),
        strategy=STRATEGIES,
        max_tokens=st.integers(1, 10),
        seed=st.integers(0, 9),
        form=st.sampled_from(["lists", "bits", "items"]),
        priority=st.integers(0, 2),
    )
    def submit_held(
        self, length: int, strategy: Any, max_tokens: int, seed: int, form: Any, priority: int
    ) -> None:
        """Held to a constraint, among those that are not."""
        self.count += 1
        prompt = [(3 + i // 7) % VOCAB for i in range(length)]
        options: dict[str, Any] = {"max_tokens": max_tokens, "priority": priority}
        if form == "items":
            options["constraint"] = FromCatalogue("items", end="item")
            table = items_table([(5, 6, 7), (5, 6, 8, 9), (4,), (9, 9, 9, 9, 9), (9, 8)], VOCAB)
        else:
            table = random_table(seed, VOCAB, form=form, also=(1,), also_states=frozenset({2, 3}))
        what = request(f"r{self.count}", prompt, strategy, eos=[1, 2], **options)
        self.send(dataclasses.replace(what, constraint=table))

    def send(self, what: DecodeRequest) -> None:
        with contextlib.suppress(CapacityError):
            self.engine.submit(what)
            self.sent[what.request_id] = what

    @rule(
        length=st.integers(1, 30),
        continuations=CONTINUATIONS,
        priority=st.integers(0, 2),
    )
    def score(self, length: int, continuations: list[list[int]], priority: int) -> None:
        self.count += 1
        prompt = [(3 + i // 7) % VOCAB for i in range(length)]
        self.send(score_request(f"r{self.count}", prompt, continuations, priority=priority))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.sent)))
        self.cancelled.add(name)
        self.take(self.engine.cancel(name))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.scheduler.preempt(data.draw(st.sampled_from(sorted(self.sent))))

    @rule(steps=st.integers(1, 4))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.engine.step())

    def take(self, events: Any) -> None:
        for event in events:
            what = self.sent.pop(event.request_id)
            if event.request_id in self.cancelled:
                assert isinstance(event, GroupFailed)
                assert isinstance(event.error, CancelledError)
                continue
            assert isinstance(event, GroupFinished), event
            assert tokens(event.candidates) == tokens(decode_alone(renamed(what, "alone")))
            if what.constraint is not None:
                assert isinstance(what.constraint, Table)
                assert all(what.constraint.accepts(c.token_ids) for c in event.candidates)

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "engine"):
            self.engine.scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.engine.has_work:
                break
            self.take(self.engine.step())
        assert not self.sent, "a request was lost"
        assert_idle(self.engine)


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestTraffic = Traffic.TestCase
