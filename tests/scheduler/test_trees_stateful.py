"""Random trees on small pools against a plain dict of paths: whatever was held, swapped, dropped or lost
to a failed step, every command gives what its path alone gives, and nothing leaks."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forkdecode.errors import CancelledError, CapacityError, GroupFailedError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.scheduler.request import DecodeRequest, NodeRef, Release, Share
from forkdecode.types import BestOf, Greedy, Sample
from tests.scheduler.engines import (
    VOCAB,
    assert_idle,
    decode_alone,
    request,
    score_request,
    tokens,
    toy_engine,
)
from tests.scheduler.toy import EMPTY

STRATEGIES = st.one_of(
    st.just(Greedy()),
    st.builds(Sample, n=st.integers(1, 4), seed=st.integers(0, 5)),
    st.builds(BestOf, best_of=st.just(3), n=st.integers(1, 3), seed=st.integers(0, 5)),
)
CONTINUATIONS = st.lists(st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=9), min_size=1, max_size=4)
TOKENS = st.lists(st.integers(3, VOCAB - 1), min_size=1, max_size=9)
ALONE: dict[Any, Any] = {}


def alone(what: DecodeRequest) -> Any:
    """What the path alone gives, in an engine that never saw a tree."""
    plain = dataclasses.replace(what, request_id="alone", origin=None, keep=None)
    key = (tuple(plain.prompt.tolist()), plain.strategy, plain.options.max_tokens, plain.seed)
    if key not in ALONE:
        ALONE[key] = tokens(decode_alone(plain))
    return ALONE[key]


class Trees(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.paths: dict[NodeRef, list[int]] = {}
        self.running: dict[str, DecodeRequest] = {}
        self.cancelled: set[str] = set()
        self.released: set[NodeRef] = set()
        self.gone: set[str] = set()
        self.count = 0
        self.failing = False

    @initialize(
        block_size=st.sampled_from([1, 2, 4, 8]),
        mode=st.sampled_from(["auto", "recompute", "swap"]),
        prefix_cache=st.booleans(),
        chunk=st.integers(1, 12),
        blocks=st.sampled_from([80, 120, 300]),
        slots=st.sampled_from([0, 20, 200]),
    )
    def start(self, blocks: int, slots: int, **config: Any) -> None:
        chunk, size = config.pop("chunk"), config["block_size"]
        self.engine = toy_engine(
            num_blocks=blocks // size,
            host_slots=slots // size,
            preemption=config.pop("mode"),
            max_prefill_tokens=chunk,
            max_step_tokens=2 * chunk,
            **config,
        )
        self.root([3, 4, 5, 6, 7])

    def number(self) -> int:
        self.count += 1
        return self.count

    def pick(self, data: st.DataObject) -> NodeRef:
        return data.draw(st.sampled_from(list(self.paths)))

    @rule(path=st.lists(st.integers(3, 6), min_size=1, max_size=30))
    def root(self, path: list[int]) -> None:
        number = self.number()
        self.paths[NodeRef(f"t{number}", 0)] = path

    @precondition(lambda self: self.paths)
    @rule(
        data=st.data(),
        strategy=STRATEGIES,
        max_tokens=st.integers(1, 9),
        priority=st.integers(0, 1),
        steps=st.sampled_from([0, 3, 12]),
    )
    def decode(self, data: st.DataObject, strategy: Any, max_tokens: int, priority: int, steps: int) -> None:
        node = self.pick(data)
        number = self.number()
        what = request(
            f"r{number}", self.paths[node], strategy, eos=[1, 2], max_tokens=max_tokens, priority=priority
        )
        self.send(what, node, 100 * number)
        self.step(steps)

    @precondition(lambda self: self.paths)
    @rule(data=st.data(), continuations=CONTINUATIONS, keeps=st.booleans())
    def score(self, data: st.DataObject, continuations: list[list[int]], keeps: bool) -> None:
        node = self.pick(data)
        number = self.number()
        what = score_request(f"r{number}", self.paths[node], continuations)
        self.send(what, node, 100 * number if keeps else None)
        self.step(2)

    def send(self, what: DecodeRequest, node: NodeRef, first_child: int | None) -> None:
        keep = None if first_child is None else NodeRef(node.tree, first_child)
        what = dataclasses.replace(what, origin=node, keep=keep)
        try:
            self.engine.submit(what)
        except CapacityError:
            return
        self.running[what.request_id] = what

    @precondition(lambda self: self.paths)
    @rule(data=st.data(), more=st.lists(TOKENS, min_size=1, max_size=3))
    def extend(self, data: st.DataObject, more: list[list[int]]) -> None:
        node = self.pick(data)
        path = self.paths[node]
        children = tuple(NodeRef(node.tree, 100 * self.number()) for _ in more)
        self.engine.tree(Share(node, children, len(path)))
        for child, added in zip(children, more, strict=True):
            self.paths[child] = path + added

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        node = self.pick(data)
        path = self.paths[node]
        kept = data.draw(st.integers(1, len(path)))
        child = NodeRef(node.tree, 100 * self.number())
        self.engine.tree(Share(node, (child,), kept))
        self.paths[child] = path[:kept]

    @precondition(lambda self: self.paths)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        node = self.pick(data)
        self.engine.tree(Release(node.tree, (node.node, 5)))
        del self.paths[node]
        self.released.add(node)

    @precondition(lambda self: self.paths)
    @rule(data=st.data(), again=st.booleans())
    def forget(self, data: st.DataObject, again: bool) -> None:
        """A node that holds nothing any more may be used again, and then it does."""
        node = self.pick(data)
        self.engine.tree(Release(node.tree, (node.node,)))
        if not again:
            return
        number = self.number()
        what = request(f"r{number}", self.paths[node], Greedy(), max_tokens=1)
        self.send(what, node, None)
        for _ in range(40):
            self.step(1)
            if what.request_id not in self.running:
                break
        else:
            return
        rows = self.engine.scheduler.held._rows
        held = rows[node].length if node in rows else 0
        assert held == len(self.paths[node]) - 1

    @precondition(lambda self: len(self.paths) > 9)
    @rule(data=st.data())
    def release_tree(self, data: st.DataObject) -> None:
        tree = self.pick(data).tree
        self.engine.tree(Release(tree))
        self.gone.add(tree)
        self.paths = {node: path for node, path in self.paths.items() if node.tree != tree}

    @rule(tree=st.sampled_from(["t1", "nobody"]))
    def unknown(self, tree: str) -> None:
        self.engine.tree(Share(NodeRef(tree, -7), (NodeRef(tree, -8),), 5))
        self.engine.tree(Release("nobody", (1, 2)))
        self.engine.tree(Release("nobody"))

    @precondition(lambda self: self.running and self.count % 3 == 1)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        self.cancelled.add(name)
        self.take(self.engine.cancel(name))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        self.engine.scheduler.preempt(data.draw(st.sampled_from(sorted(self.running))))

    @rule(share=st.integers(1, 4))
    def press(self, share: int) -> None:
        """Makes idle rows go, as a big request would."""
        scheduler = self.engine.scheduler
        scheduler.held.reclaim(scheduler.pool.num_blocks // share, (), scheduler._planner.moves)

    @rule(steps=st.integers(1, 12))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.take(self.engine.step())
            self.engine.scheduler.check()

    @precondition(lambda self: self.count % 4 == 0)
    @rule()
    def update(self) -> None:
        """Other weights once nothing runs: what was computed is no more, and is computed again."""
        for _ in range(4000):
            if not self.engine.has_work:
                break
            self.step(1)
        self.engine.scheduler.forget()
        runner, stats = self.engine._runner, self.engine.stats()
        assert (stats.used_blocks, stats.cached_blocks) == (0, 0)
        runner.store[:] = runner.host[:] = EMPTY

    @precondition(lambda self: self.count % 3 == 0)
    @rule()
    def fail(self) -> None:
        """A step that the model fails: what it computes and what it moves is lost."""
        self.engine._runner.fail_at = {self.engine.scheduler._planner.step + 1}
        self.failing = True
        self.take(self.engine.step())
        self.failing = False

    def take(self, events: Any) -> None:
        for event in events:
            what = self.running.pop(event.request_id)
            expected = alone(what)
            if event.request_id in self.cancelled or self.failing:
                assert isinstance(event, GroupFailed), event
                assert isinstance(event.error, GroupFailedError if self.failing else CancelledError)
                assert isinstance(event.error, CancelledError) or not event.candidates
            else:
                assert isinstance(event, GroupFinished), event
                found = tokens(event.candidates)
                assert found == expected or (self.let_go(what) and set(found) <= set(expected))
            self.adopt(what, event)

    def let_go(self, what: DecodeRequest) -> bool:
        """Whether its tree was released while it ran: candidates that nobody waits for end unseen."""
        return what.keep is not None and what.keep.tree in self.gone

    def adopt(self, what: DecodeRequest, event: Any) -> None:
        """Nodes of the candidates that came back."""
        if what.keep is None or what.keep.tree in self.gone:
            return
        for candidate in event.candidates:
            node = NodeRef(what.keep.tree, what.keep.node + candidate.index)
            self.paths[node] = [*what.prompt.tolist(), *candidate.token_ids]

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "engine"):
            return
        scheduler = self.engine.scheduler
        scheduler.check()
        known = set(self.paths)
        for what in self.running.values():  # those that have finished before their group
            if what.keep is not None:
                known |= {NodeRef(what.keep.tree, what.keep.node + i) for i in range(8)}
        held = set(scheduler.held._rows)
        assert held <= known, "a node that nobody knows holds something"
        assert not held & self.released
        for node in held & set(self.paths):
            assert 0 < scheduler.held._rows[node].length <= len(self.paths[node])

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(4000):
            if not self.engine.has_work:
                break
            self.take(self.engine.step())
        assert not self.running, "a request was lost"
        for tree in {node.tree for node in self.paths}:
            self.engine.tree(Release(tree))
        held = self.engine.scheduler.held
        assert len(held) == 0
        assert not held._blocks.rows.any()
        assert len(held.released) == 0
        self.engine.submit(request("last", [3], Greedy(), max_tokens=1))  # runs the moves that are left
        self.engine.step()
        assert_idle(self.engine)


Trees.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTrees = Trees.TestCase
