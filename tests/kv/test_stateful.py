"""Every operation of the KV layer in any order, against plain token lists, checked at each step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forkdecode.kv import BlockPool, BlockTable, Extension, HostPool, OutOfBlocksError, PrefixCache
from forkdecode.kv.forest import sharing
from forkdecode.kv.table_batch import advance_all, count_all, extend_all, room_for_all
from tests.kv.machine import (
    Group,
    Held,
    Preempted,
    Store,
    check_promoted,
    check_table,
    copies_by_rule_2,
    copies_one_by_one,
    holders,
    poison,
    recompute,
    swap_in,
)

SALTS = st.sampled_from(["", "tenant"])
TOKEN = st.integers(0, 2)  # few, so that prompts meet in the cache


def has_rows(machine: KvMachine) -> bool:
    return any(group.rows for group in machine.groups)


class KvMachine(RuleBasedStateMachine):
    @initialize(size=st.sampled_from([1, 2, 4, 8]), num_blocks=st.integers(8, 48))
    def start(self, size: int, num_blocks: int) -> None:
        self.size = size
        self.pool = BlockPool(num_blocks, size)
        self.cache = PrefixCache(self.pool, b"model")
        self.host = HostPool(num_blocks)
        self.store = Store(np.full((num_blocks, size), -1, np.int64), size)
        self.groups: list[Group] = []
        self.held: list[Held] = []
        self.preempted: list[tuple[Preempted, np.ndarray]] = []

    def pick(self, data: st.DataObject) -> Group:
        """A group with rows that does not write in the step being planned: that one runs first."""
        group = data.draw(st.sampled_from([g for g in self.groups if g.rows]))
        if group.pending:
            self.run_step()
        return group

    # -- admission --------------------------------------------------------------------------------

    @rule(salt=SALTS, tokens=st.lists(TOKEN, min_size=1, max_size=20))
    def admit(self, salt: str, tokens: list[int]) -> None:
        hit = self.cache.match(np.array(tokens), salt, (len(tokens) - 1) // self.size)
        assert self.store.read(hit, len(hit) * self.size) == tokens[: len(hit) * self.size]
        group = Group(BlockTable.open(self.pool, hit), [tokens[: len(hit) * self.size]], salt)
        self.groups.append(group)
        self.write(group, [tokens[len(hit) * self.size :]])

    @precondition(has_rows)
    @rule(data=st.data(), count=st.integers(0, 9))
    def extend(self, data: st.DataObject, count: int) -> None:
        group = self.pick(data)
        draw = st.lists(TOKEN, min_size=count, max_size=count)
        self.write(group, [data.draw(draw) for _ in group.rows])

    def write(self, group: Group, tokens: list[list[int]]) -> None:
        table, count = group.table, len(tokens[0])
        copies = copies_by_rule_2(self.pool, table) if count else 0
        columns = -(-(table.length + count) // self.size) - -(-table.length // self.size)
        needed = table.blocks_needed(count)
        assert needed == copies + columns * table.rows
        before, counts, length = table.references(), self.pool.ref_count.copy(), table.length
        if needed > self.pool.num_available:
            with pytest.raises(OutOfBlocksError) as raised:
                table.extend(count)
            assert (raised.value.needed, raised.value.available) == (needed, self.pool.num_available)
            assert sorted(table.references()) == sorted(before)
            assert (self.pool.ref_count == counts).all()
            assert table.length == length
            return
        extension = table.extend(count)
        assert extension.slots.shape == (table.rows, count)
        assert len(extension.copies) == copies
        assert len(set(table.references().tolist()) - set(before.tolist())) == needed
        self.store.plan(extension, tokens)
        group.rows = [row + new for row, new in zip(group.rows, tokens, strict=True)]
        group.pending = True

    @precondition(has_rows)
    @rule(data=st.data())
    def extend_all(self, data: st.DataObject) -> None:
        """One token of several groups: as many copies as if they came one after the other."""
        groups = self.several(data)
        tables = [group.table for group in groups]
        if not room_for_all(tables):
            return
        copies = copies_one_by_one(self.pool, tables)
        extended = extend_all(tables)
        assert len(extended.copies) == sum(extended.counts) == copies
        sizes = [len(group.rows) for group in groups]
        written = data.draw(st.lists(TOKEN, min_size=sum(sizes), max_size=sum(sizes)))
        self.store.plan(Extension(extended.slots[:, None], extended.copies), [[t] for t in written])
        for place, group in enumerate(groups):
            own = extended.only([place], sizes)
            assert own.counts == [extended.counts[place]] == [len(own.copies)]
            assert (own.slots // self.size == group.table.tails[:, -1]).all()
            tokens, written = written[: len(group.rows)], written[len(group.rows) :]
            group.rows = [[*row, token] for row, token in zip(group.rows, tokens, strict=True)]
            group.pending = True
        count_all(tables)
        for table in tables:
            assert table.num_unique == len(set(table.references().tolist()))
            assert table.num_last == (len(set(table.tails[:, -1].tolist())) if table.tails.size else 0)

    def several(self, data: st.DataObject) -> list[Group]:
        """Groups with rows, none of which writes in the step being planned."""
        rowed = [group for group in self.groups if group.rows]
        chosen = data.draw(st.lists(st.sampled_from(rowed), min_size=1, unique_by=id))
        if any(group.pending for group in chosen):
            self.run_step()
        return chosen

    @rule()
    def run_step(self) -> None:
        self.store.execute()
        self.pool.begin_step()
        for group in self.groups:
            group.pending = False
        poison(self.store, self.pool)

    # -- strategies -------------------------------------------------------------------------------

    @precondition(has_rows)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        group = self.pick(data)
        parent = st.integers(0, len(group.rows) - 1)
        fork_of_one = st.builds(lambda p, n: [p] * n, parent, st.integers(1, 4))
        parents = data.draw(
            fork_of_one | st.lists(parent, max_size=6) | st.lists(parent, min_size=2, max_size=6)
        )
        group.table.advance(np.array(parents, np.int32))
        group.rows = [group.rows[p] for p in parents]
        check_promoted(group.table, self.size)

    @precondition(has_rows)
    @rule(data=st.data())
    def advance_nowhere(self, data: st.DataObject) -> None:
        group = self.pick(data)
        held = sorted(group.table.references())
        group.table.advance(np.arange(len(group.rows), dtype=np.int32))
        assert sorted(group.table.references()) == held

    @precondition(has_rows)
    @rule(data=st.data())
    def advance_all(self, data: st.DataObject) -> None:
        groups = self.several(data)
        moves = []
        for group in groups:
            last = len(group.rows) - 1
            stay = st.just(list(range(last + 1)))
            moves.append(data.draw(stay | st.lists(st.integers(0, last), min_size=1, max_size=6)))
        wrong = [np.array([*parents, len(group.rows)]) for parents, group in zip(moves, groups, strict=True)]
        with pytest.raises(ValueError, match="out of range"):
            advance_all([group.table for group in groups], wrong)
        self.counts_agree()
        advance_all([group.table for group in groups], [np.array(parents, np.int32) for parents in moves])
        for group, parents in zip(groups, moves, strict=True):
            group.rows = [group.rows[p] for p in parents]
            check_promoted(group.table, self.size)

    @precondition(has_rows)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        group = self.pick(data)
        length = data.draw(st.integers(0, group.table.length))
        group.table.truncate(length)
        group.rows = [row[:length] for row in group.rows]

    @precondition(has_rows)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        group = self.pick(data)
        group.table.release()
        self.groups.remove(group)

    # -- rows at rest -----------------------------------------------------------------------------

    @precondition(has_rows)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        group = self.pick(data)
        row = data.draw(st.integers(0, len(group.rows) - 1))
        self.held.append(Held(group.table.hold(row), group.rows[row], group.salt))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def continue_held(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        table = BlockTable.from_held(self.pool, held.row)
        self.groups.append(Group(table, [list(held.tokens)], held.salt))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release_held(self, data: st.DataObject) -> None:
        held = data.draw(st.sampled_from(self.held))
        held.row.release()
        self.held.remove(held)

    # -- the prefix cache -------------------------------------------------------------------------

    @precondition(has_rows)
    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:
        group = self.pick(data)
        row = data.draw(st.integers(0, len(group.rows) - 1))
        tokens = np.array(group.rows[row], np.int64)
        computed = data.draw(st.none() | st.integers(0, len(tokens) // self.size + 1))
        full = min(len(tokens) // self.size, len(tokens) if computed is None else computed)
        self.cache.insert(tokens, group.table.row_blocks(row), group.salt, computed)
        assert len(self.cache.match(tokens, group.salt)) >= full

    @rule(salt=SALTS, tokens=st.lists(TOKEN, max_size=20), limit=st.none() | st.integers(0, 4))
    def probe(self, salt: str, tokens: list[int], limit: int | None) -> None:
        hit = self.cache.match(np.array(tokens, np.int64), salt, limit)
        assert len(hit) <= (len(tokens) // self.size if limit is None else limit)
        assert self.store.read(hit, len(hit) * self.size) == tokens[: len(hit) * self.size]

    # -- preemption -------------------------------------------------------------------------------

    @precondition(has_rows)
    @rule(data=st.data(), swap=st.booleans())
    def preempt(self, data: st.DataObject, swap: bool) -> None:
        group = self.pick(data)
        image = group.table.image()
        assert image.num_unique == group.table.num_unique
        swap = swap and image.num_unique <= self.host.num_free
        contents = self.store.contents[image.unique_old] if swap else None
        slots = self.host.allocate(image.num_unique if swap else 0)
        group.table.release()
        self.groups.remove(group)
        self.preempted.append((Preempted(image, group.rows, group.salt, contents), slots))

    @precondition(lambda self: self.preempted)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.preempted))
        was, slots = entry
        cached = np.empty(0, np.int32)
        if was.swapped is None:
            tokens = np.array(was.rows[0], np.int64)
            cached = self.cache.match(tokens, was.salt, was.image.num_trunk)
        counts = self.pool.ref_count.copy()
        try:
            table = BlockTable.restore(self.pool, was.image, cached)
        except OutOfBlocksError:
            assert (self.pool.ref_count == counts).all()
            return
        if was.swapped is None:
            recompute(self.store, table, was.image, was.rows, len(cached))
        else:
            swap_in(self.store, table, was.swapped)
        self.host.free(slots)
        self.preempted.remove(entry)
        self.groups.append(Group(table, was.rows, was.salt))

    # -- what must always hold --------------------------------------------------------------------

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.pool.check(holders(self.groups, self.held, self.cache))
        assert self.pool.num_available == self.pool.num_free + self.pool.num_evictable
        tables = [g.table for g in self.groups]
        for group in self.groups:
            check_table(group.table, self.size)
            assert group.table.rows == len(group.rows)
        ids = {b for t in tables for b in t.references().tolist()}
        assert sharing(tables).unique == len(ids)

    @invariant()
    def contents_agree(self) -> None:
        for group in getattr(self, "groups", []):
            if not group.pending:
                for row, tokens in enumerate(group.rows):
                    assert self.store.read(group.table.row_blocks(row), group.table.length) == tokens
        for held in getattr(self, "held", []):
            assert self.store.read(held.row.blocks, held.row.length) == held.tokens

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for group in self.groups:
            group.table.release()
        for held in self.held:
            held.row.release()
        self.pool.begin_step()
        assert self.pool.num_available == self.pool.num_blocks
        self.cache.clear()
        assert self.pool.num_free == self.pool.num_blocks
        assert not len(self.cache)


KvMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestKvMachine = KvMachine.TestCase
