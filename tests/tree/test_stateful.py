"""Random commands to two sessions on one small engine, against plain paths and ordinary requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from forkdecode.errors import CapacityError, ForkdecodeError, InvalidRequestError
from forkdecode.scheduler.events import CandidateRecord
from forkdecode.tree import lineages
from forkdecode.tree_types import (
    Accepted,
    Command,
    Decode,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodePath,
    NodeScored,
    Pin,
    Prune,
    ScoreNodes,
    Stop,
    TreeLimits,
    Truncate,
    Unpin,
)
from forkdecode.types import Greedy, Options, Sample
from tests.llm.models import EOS_ID, ids
from tests.tree.driven import Driven, InlinePort, ordinary

LIMITS = TreeLimits(max_nodes=24, max_depth=5, max_tokens=150, max_blocks=24, idle_ttl=30.0)
PROMPTS = ("hello world", "hello hello world, hello")
OPTIONS = (
    {"max_tokens": 5},
    {"max_tokens": 1},
    {"max_tokens": 9, "allowed_token_ids": (*ids("ab\n"), EOS_ID), "stop": ("ab",)},
    {"max_tokens": 9, "allowed_token_ids": ids("ab\n"), "step": ("\n",)},
    {"max_tokens": 6, "allowed_token_ids": (*ids("ab"), EOS_ID), "repetition_penalty": 1.2, "logprobs": 1},
)


@dataclass
class Plain:
    """A node as it should be. expected: what an ordinary request says of it, while it is generated."""

    path: tuple[int, ...]
    start: int
    depth: int
    lineage: int
    base: int
    parent: int | None
    state: str = "stopped"
    expected: CandidateRecord | None = None
    steps: bool = False


@cache
def _expected(path: tuple[int, ...], n: int, seed: int, choice: int) -> tuple[CandidateRecord, ...]:
    options = dict(OPTIONS[choice])
    stop = (*options.pop("stop", ()), *options.pop("step", ()))  # type: ignore[misc]
    strategy = Sample(n=n) if n else Greedy()
    return ordinary(path, strategy, seed, Options(stop=stop, **options))[0]


class Model:
    """One session and the plain tree that it should be."""

    def __init__(self, prompt: str | None, port: InlinePort, seed: int) -> None:
        self.tree = Driven(prompt, port, LIMITS, seed)
        self.nodes: dict[int, Plain] = {}
        self.made = 0
        if prompt is not None:
            path = tuple(self.tree.node(0).token_ids)
            self.add(Plain(path, 0, 0, lineages.root_lineage(seed), len(path), None))

    def add(self, node: Plain) -> None:
        self.nodes[self.made] = node
        self.made += 1

    def at_rest(self, number: int) -> bool:
        return number in self.nodes and self.nodes[number].state != "generating"

    def send(self, command: Command, *, fine: bool, made: list[Plain] | None = None) -> bool:
        """fine: whether it should be accepted, if the session's limits allow. Returns whether it was."""
        made = made or []
        before = self.tree.session.snapshot()
        said = self.tree.send(command)
        if isinstance(said[0], Accepted):
            assert fine, command
            assert [info.node for info in said[0].nodes] == list(range(self.made, self.made + len(made)))
            for node in made:
                self.add(node)
            return True
        error: ForkdecodeError = said[0].error  # type: ignore[union-attr]
        assert error.field is not None
        assert len(said) == 1
        assert self.tree.session.snapshot() == before
        if fine:
            assert isinstance(error, CapacityError), error
            self._check_refusal(error, made)
        else:
            assert isinstance(error, InvalidRequestError), error
        return False

    def _check_refusal(self, error: CapacityError, made: list[Plain]) -> None:
        if error.field == "max_nodes":
            assert len(self.nodes) + len(made) > LIMITS.max_nodes
        elif error.field == "max_depth":
            assert max(node.depth for node in made) > LIMITS.max_depth
        else:
            assert error.field in {"max_tokens", "max_blocks"}, error

    def check(self) -> None:
        """The session's nodes are the model's."""
        infos = self.tree.session.snapshot().nodes
        assert [info.node for info in infos] == sorted(self.nodes)
        for info in infos:
            node = self.nodes[info.node]
            own = info.token_ids
            if node.expected is not None:
                assert own == node.expected.token_ids[: len(own)]
                if info.state != "generating":
                    assert own == node.expected.token_ids
                    reason = node.expected.finish_reason
                    assert info.finish_reason == ("step" if node.steps and reason == "stop" else reason)
                    assert info.cumulative_logprob == node.expected.cumulative_logprob
                    node.state = "finished" if reason == "eos" else "stopped"
                    node.path += own
                    node.expected = None
            assert (info.state, info.start, info.lineage) == (node.state, node.start, node.lineage)
            assert info.depth == node.depth
            if node.state != "generating":
                assert self.tree.path(info.node) == node.path
        session = self.tree.session
        assert session.blocks <= (LIMITS.max_blocks or 0)
        assert sum(i.start + len(i.token_ids) - i.start for i in infos) <= LIMITS.max_tokens

    def below(self, number: int) -> set[int]:
        found = {number}
        for other, node in sorted(self.nodes.items()):
            if node.parent in found:
                found.add(other)
        return found


class Trees(RuleBasedStateMachine):
    """Numbers that a rule draws are taken modulo the nodes there have been, so that most of them exist."""

    @initialize(blocks=st.sampled_from((22, 30, 60)), host=st.sampled_from((0, 16)), cache=st.booleans())
    def start(self, blocks: int, host: int, cache: bool) -> None:
        self.port = InlinePort(blocks, host, prefix_cache=cache, max_step_tokens=16)
        self.models = [Model(PROMPTS[i], self.port, seed=i) for i in range(2)]

    def _model(self, which: int) -> Model:
        return self.models[which % 2]

    @rule(
        which=st.integers(0, 1),
        picks=st.lists(st.integers(0, 12), min_size=1, max_size=2, unique=True),
        n=st.integers(0, 3),
        seed=st.integers(0, 1),
        choice=st.integers(0, len(OPTIONS) - 1),
        steps=st.sampled_from((0, 2, 20)),
    )
    def decode(self, which: int, picks: list[int], n: int, seed: int, choice: int, steps: int) -> None:
        model = self._model(which)
        numbers = tuple(dict.fromkeys(pick % (model.made + 1) for pick in picks))
        options: dict[str, Any] = dict(OPTIONS[choice])
        step = options.pop("step", ())
        fine = all(number in model.nodes and model.nodes[number].state == "stopped" for number in numbers)
        made = []
        for number in numbers if fine else ():
            node = model.nodes[number]
            request = lineages.decode_seed(node.lineage, seed if n else 0)
            for i, record in enumerate(_expected(node.path, n, request, choice)):
                made.append(
                    Plain(
                        node.path,
                        len(node.path),
                        node.depth + 1,
                        lineages.decoded(request, i),
                        node.base,
                        number,
                        "generating",
                        record,
                        bool(step),
                    )
                )
        seeds = (seed,) * len(numbers) if n else None
        strategy = Sample(n=n) if n else Greedy()
        model.send(
            Decode(model.tree.next_id(), numbers, strategy, Options(**options), step, seeds),
            fine=fine,
            made=made,
        )
        self.step(steps)

    @rule(count=st.integers(1, 8))
    def some_steps(self, count: int) -> None:
        self.step(count)

    def step(self, count: int) -> None:
        for _ in range(count):
            self.port.step()
            for model in self.models:
                model.tree.pump()

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), n=st.integers(1, 3), seed=st.integers(0, 5))
    def fork(self, which: int, pick: int, n: int, seed: int) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        seeds = tuple(range(seed, seed + n))
        made = []
        if fine := model.at_rest(number):
            node = model.nodes[number]
            for each in seeds:
                lineage = lineages.forked(node.lineage, each)
                made.append(
                    Plain(node.path, len(node.path), node.depth + 1, lineage, node.base, number, node.state)
                )
        model.send(Fork(model.tree.next_id(), number, n, seeds), fine=fine, made=made)

    @rule(
        which=st.integers(0, 1),
        pick=st.integers(0, 12),
        text=st.sampled_from(("a", " world", "é", "hello\n")),
    )
    def extend(self, which: int, pick: int, text: str) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        made = []
        if fine := model.at_rest(number):
            node = model.nodes[number]
            given = ids(text)
            lineage = lineages.extended(node.lineage, given)  # type: ignore[arg-type]
            made.append(Plain(node.path + given, len(node.path), node.depth + 1, lineage, node.base, number))
        model.send(Extend(model.tree.next_id(), number, text), fine=fine, made=made)

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), back=st.integers(0, 9))
    def truncate(self, which: int, pick: int, back: int) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        made = []
        length = 1
        fine = model.at_rest(number)
        if fine:
            node = model.nodes[number]
            length = max(1, len(node.path) - back)
            fine = length >= node.base
        if fine:
            parent: int | None = number
            while parent is not None and len(model.nodes[parent].path) > length:
                above = model.nodes[parent].parent
                parent = above if above in model.nodes else None
            start = node.base if parent is None else len(model.nodes[parent].path)
            depth = 0 if parent is None else model.nodes[parent].depth + 1
            state = node.state if length == len(node.path) else "stopped"
            lineage = lineages.truncated(node.lineage, length)
            made.append(Plain(node.path[:length], start, depth, lineage, node.base, parent, state))
        model.send(Truncate(model.tree.next_id(), number, length), fine=fine, made=made)

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), subtree=st.booleans())
    def prune(self, which: int, pick: int, subtree: bool) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        fine = number in model.nodes
        if model.send(Prune(model.tree.next_id(), (number,), subtree), fine=fine):
            for gone in model.below(number) if subtree else {number}:
                del model.nodes[gone]

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), finish=st.booleans())
    def stop(self, which: int, pick: int, finish: bool) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        kind: Callable[..., Stop | Finish] = Finish if finish else Stop
        if model.send(kind(model.tree.next_id(), (number,)), fine=number in model.nodes):
            node = model.nodes[number]
            if node.expected is not None:
                own = model.tree.node(number).token_ids
                assert own == node.expected.token_ids[: len(own)]
                node.path, node.expected, node.state = node.path + own, None, "stopped"
                assert model.tree.node(number).finish_reason == "cancelled"
            if finish:
                node.state = "finished"

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), ttl=st.sampled_from((None, 5.0, 100.0)))
    def pin(self, which: int, pick: int, ttl: float | None) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        model.send(Pin(model.tree.next_id(), (number,), ttl), fine=number in model.nodes)

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12))
    def unpin(self, which: int, pick: int) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        model.send(Unpin(model.tree.next_id(), (number,)), fine=number in model.nodes)

    @rule(seconds=st.sampled_from((1.0, 20.0, 40.0)))
    def wait(self, seconds: float) -> None:
        for model in self.models:
            model.tree.now += seconds

    @rule(which=st.integers(0, 1), pick=st.integers(0, 12), own=st.booleans())
    def score(self, which: int, pick: int, own: bool) -> None:
        model = self._model(which)
        number = pick % (model.made + 1)
        fine = model.at_rest(number)
        if own and fine:
            node = model.nodes[number]
            fine = 0 < node.start < len(node.path)
        texts = () if own else ("ab", " world")
        model.send(ScoreNodes(model.tree.next_id(), (number,), texts), fine=fine)

    @rule(which=st.integers(0, 1), picks=st.lists(st.integers(0, 30), min_size=1, max_size=3, unique=True))
    def move(self, which: int, picks: list[int]) -> None:
        """Nodes of one session go on in the other."""
        source, target = self._model(which), self._model(which + 1)
        numbers = sorted({pick % source.made for pick in picks} & set(source.nodes))
        numbers = [number for number in numbers if source.at_rest(number)]
        if not numbers:
            return
        said = source.tree.send(Export(source.tree.next_id(), tuple(numbers)))
        [exported] = [event for event in said if isinstance(event, Exported)]
        plain = json.loads(json.dumps([path.to_json() for path in exported.paths]))
        made: list[Plain] = []
        places = {number: target.made + i for i, number in enumerate(numbers)}
        for number in numbers:
            node = source.nodes[number]
            parent = places.get(-1 if node.parent is None else node.parent)
            above = None if parent is None else made[parent - target.made]
            base = above.base if above is not None else node.start or len(node.path)
            depth = 0 if above is None else above.depth + 1
            made.append(Plain(node.path, node.start, depth, node.lineage, base, parent, node.state))
        paths = tuple(NodePath.of_json(path) for path in plain)
        target.send(Import(target.tree.next_id(), paths), fine=True, made=made)

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        """A session ends, whatever runs; another takes its place."""
        self.models[which].tree.session.close()
        self.models[which] = Model(PROMPTS[which], self.port, seed=which)

    @invariant()
    def the_sessions_are_the_models(self) -> None:
        for model in self.models:
            model.check()
        self.port.engine.scheduler.check()
        stats, sessions = self.port.stats(), [model.tree.session for model in self.models]
        assert stats.used_blocks <= sum(session.blocks for session in sessions)
        assert stats.held_nodes <= sum(session.held_nodes for session in sessions)

    def teardown(self) -> None:
        if not hasattr(self, "port"):
            return
        while self.port.step():
            for model in self.models:
                model.tree.pump()
        for model in self.models:
            assert not model.tree.session.is_running
            model.check()
            assert not any(node.expected for node in model.nodes.values())
            model.tree.check_heard()
            for scored in model.tree.said(NodeScored):
                assert all(s.cumulative_logprob < 0 for s in scored.continuations)
        for model in self.models:
            model.tree.session.close()
        stats = self.port.stats()
        assert (stats.used_blocks, stats.held_nodes) == (0, 0)
        assert stats.free_blocks + stats.cached_blocks == stats.total_blocks


TestTrees = Trees.TestCase
TestTrees.settings = settings(max_examples=40, stateful_step_count=30)
