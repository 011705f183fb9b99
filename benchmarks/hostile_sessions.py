"""Hostile tree sessions: wrong, random and damaged commands, floods of them, lost connections, wrong secrets;
and a good neighbour whose tree must stay what it is."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from benchmarks.hostile_trees import TreeAttack, plain, tree_attacks
from forkdecode import AsyncClient, Sample
from forkdecode.results import ServedModel
from forkdecode.rpc.v1 import decode_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["DecodeService"].full_name
PATIENCE = 60.0
"""Seconds after which a session counts as one that hangs."""
COMMANDS, FLOOD = 40, 400
"""Of a session that waits for each answer, and of one that waits for none."""
_REFUSALS = (grpc.StatusCode.INVALID_ARGUMENT.value[0], grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
_CUT = "cut off"
_OPEN = pb.TreeCommand(
    open_tree=pb.OpenTree(
        prompt=pb.Prompt(token_ids=pb.TokenIds(ids=[5, 6, 7])), seed=1, limits=pb.TreeLimits(max_nodes=300)
    )
)


@dataclass
class TreesFound:
    """What came of it. faults: what must not be, in words."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    sessions: int = 0
    resumed: int = 0
    exact_neighbours: int = 0

    def answered(self, attack: TreeAttack, error: pb.Error | None) -> None:
        """A command was accepted, or refused with an error."""
        said = "accepted" if error is None else _name(error.code)
        self.outcomes.setdefault(attack.kind, Counter())[said] += 1
        problem = ""
        if error is None:
            problem = "was accepted" if attack.refused else ""
        elif error.code not in _REFUSALS:
            problem = f"was refused with {said}: {error.message}"
        elif error.code == _REFUSALS[0] and not error.path:
            problem = f"was refused without a field: {error.message}"
        elif error.code == _REFUSALS[0] and attack.path and error.path not in (attack.path, *_nodes(attack)):
            problem = f"{error.path} was named for {attack.path}: {error.message}"
        if problem:
            self.faults.append(f"{attack.kind}: {problem}: {attack.data[:200].hex()}")

    def ended(self, error: pb.Error | None) -> None:
        """An accepted command ended, maybe by an error: only a dead end of what is allowed makes one."""
        if error is not None and "no legal token" not in error.message:
            self.faults.append(f"an accepted command ended with {_name(error.code)}: {error.message}")

    def as_record(self) -> dict[str, Any]:
        """All but the faults."""
        return {
            "count": self.sessions,
            "resumed": self.resumed,
            "outcomes": {kind: dict(codes) for kind, codes in sorted(self.outcomes.items())},
            "exact_neighbours": self.exact_neighbours,
        }

    def ended_call(self, what: str, code: str, allowed: Sequence[str]) -> None:
        self.outcomes.setdefault(what, Counter())[code] += 1
        if code not in allowed:
            self.faults.append(f"{what}: the call ended with {code}")


def _nodes(attack: TreeAttack) -> tuple[str, str]:
    """What may be named, too: a random command may have pruned or finished what this one is about."""
    action = attack.path.partition(".")[0]
    return f"{action}.node", f"{action}.nodes"


def _name(code: int) -> str:
    return next((one.name for one in grpc.StatusCode if one.value[0] == code), str(code))


class RawSession:
    """One call, spoken to in bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        call: Any = channel.stream_stream(f"/{SERVICE}/Session")
        self._call: Any = call(timeout=PATIENCE)
        self.opened = pb.TreeOpened()

    async def begin(self, command: pb.TreeCommand) -> bool:
        """Whether the session is opened or resumed."""
        await self.send(command.SerializeToString())
        async for change in self.changes():
            self.opened = change.opened
            return True
        return False

    async def send(self, data: bytes) -> None:
        """Of a call that has ended nothing is sent."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self._call.write(data)

    async def changes(self) -> Any:
        """Those that come, until the call ends."""
        try:
            while isinstance(data := await self._call.read(), bytes):
                for change in pb.TreeEvent.FromString(data).changes:
                    yield change
        except grpc.aio.AioRpcError:
            return

    async def code(self) -> str:
        """The status with which the call ended, or _CUT where a write met its end, for then grpcio puts a
        status of its own in place of the server's."""
        code = await self._call.code()
        if code is grpc.StatusCode.INTERNAL and await self._call.details() == "Internal error from Core":
            return _CUT
        return str(code.name)

    def drop(self) -> None:
        self._call.cancel()


class SessionAttacker:
    """Attacks with sessions, each of which is closed in the end."""

    def __init__(self, channel: grpc.aio.Channel, stub: Any, model: ServedModel, found: TreesFound) -> None:
        self._channel = channel
        self._stub = stub
        self._model = model
        self._found = found

    async def attack(self, seed: int, *, steps: bool) -> None:
        """One session. steps: nothing else runs, so what is refused must not have cost the engine any."""
        rng = random.Random(seed)
        session = RawSession(self._channel)
        self._found.sessions += 1
        if not await session.begin(_OPEN):
            self._found.faults.append(f"a session was not opened: {await session.code()}")
            return
        if rng.random() < 0.3:
            await self._flood(rng, session)
        else:
            await self._one_by_one(rng, session, steps)
        await self._end(rng, session)

    async def _one_by_one(self, rng: random.Random, session: RawSession, steps: bool) -> None:
        """Each is answered; after one whose id is not known another one is, or the call has ended."""
        for attack in tree_attacks(rng, self._model, 1, COMMANDS):
            before = await self._steps() if steps and attack.refused else 0
            await session.send(attack.data)
            if attack.number is None:
                sign = pb.TreeCommand(command_id=2**50 + rng.randrange(2**40))
                sign.unpin_nodes.nodes.append(2**40)
                await session.send(sign.SerializeToString())
                if not await self._answer(session, TreeAttack("sign", b"", sign.command_id, True)):
                    allowed = ("INVALID_ARGUMENT", "OK", _CUT)
                    self._found.ended_call(attack.kind, await session.code(), allowed)
                    return
            elif not await self._answer(session, attack):
                closed = b"\x22" in attack.data  # close_tree among random ones
                self._found.ended_call(attack.kind, await session.code(), ("OK",) if closed else ())
                return
            elif before and await self._steps() != before:
                self._found.faults.append(
                    f"{attack.kind}: refused after {await self._steps() - before} steps"
                )

    async def _answer(self, session: RawSession, attack: TreeAttack) -> bool:
        """Waits until the command is refused or has ended; False where the call ended instead."""
        async for change in session.changes():
            kind = change.WhichOneof("change")
            if kind == "refused" and change.refused.command_id == attack.number:
                self._found.answered(attack, change.refused.error)
                return True
            if kind == "accepted" and change.accepted.command_id == attack.number:
                self._found.answered(attack, None)
            if kind == "done":
                self._found.ended(change.done.error if change.done.HasField("error") else None)
                if change.done.command_id == attack.number:
                    return True
        return False

    async def _flood(self, rng: random.Random, session: RawSession) -> None:
        """Many at once, read when all are sent, or as much as the server takes: each has one answer."""
        attacks = [a for a in tree_attacks(rng, self._model, 1, FLOOD) if a.number and _stays(a.data)]
        wanted = {attack.number: attack for attack in attacks}
        sending = asyncio.ensure_future(self._send_all(session, attacks))
        if rng.random() < 0.3:  # and then it is lost
            await asyncio.sleep(0)
            sending.cancel()
            return
        async for change in session.changes():
            kind = change.WhichOneof("change")
            if kind == "accepted":
                self._found.answered(wanted[change.accepted.command_id], None)
            elif kind == "refused":
                attack = wanted.pop(change.refused.command_id, None)
                if attack is None:
                    self._found.faults.append("a command was answered twice")
                else:
                    self._found.answered(attack, change.refused.error)
            elif kind == "done" and wanted.pop(change.done.command_id, None) is None:
                self._found.faults.append("a command ended twice")
            if not wanted:
                break
        await sending
        if wanted:
            self._found.faults.append(
                f"{len(wanted)} commands of a flood have no answer: {await session.code()}"
            )

    async def _send_all(self, session: RawSession, attacks: Iterable[TreeAttack]) -> None:
        for attack in attacks:
            await session.send(attack.data)

    async def _end(self, rng: random.Random, session: RawSession) -> None:
        """Lost in the middle of a command, refused to who has a wrong secret, resumed, and closed."""
        await session.send(plain(rng, self._model, 2**60).SerializeToString())
        session.drop()
        name, secret = session.opened.tree, session.opened.secret
        for wrong in ((name, secret[:-1] + "?"), (name, ""), (name[:-1] + "g", secret), ("", "")):
            other = RawSession(self._channel)
            if await other.begin(_resume(*wrong)):
                self._found.faults.append("a session was resumed without its secret")
            self._found.ended_call("wrong secret", await other.code(), ("INVALID_ARGUMENT",))
        again = RawSession(self._channel)
        if await again.begin(_resume(name, secret)):
            self._found.resumed += 1
            await again.send(pb.TreeCommand(close_tree=pb.CloseTree()).SerializeToString())
            async for _ in again.changes():
                pass
            self._found.ended_call("close", await again.code(), ("OK",))
        else:  # a random command had closed it
            self._found.ended_call("resume", await again.code(), ("INVALID_ARGUMENT",))

    async def _steps(self) -> int:
        stats: pb.GetStatsResponse = await self._stub.GetStats(pb.GetStatsRequest())
        return int(stats.steps)


def _resume(tree: str, secret: str) -> pb.TreeCommand:
    return pb.TreeCommand(resume_tree=pb.ResumeTree(tree=tree, secret=secret))


def _stays(data: bytes) -> bool:
    """Whether it does not close the session."""
    return not pb.TreeCommand.FromString(data).HasField("close_tree")


async def good_tree(client: AsyncClient) -> list[Any]:
    """What a session of good commands makes."""
    async with await client.tree((5, 6, 7, 8, 9), seed=4) as tree:
        first = await tree.decode(tree.root, Sample(n=3), max_tokens=8, ignore_eos=True)
        second = await tree.decode(first, Sample(n=2), max_tokens=8, ignore_eos=True)
        await tree.prune(first[1])
        given = await tree.extend(second[0], [3, 4, 5])
        cut = await tree.truncate(given, given.num_tokens - 4)
        last = await tree.decode([given, cut], max_tokens=4, ignore_eos=True)
        scores = await tree.score(last, [(1, 2)])
        told = [(n.id, n.path_token_ids, n.finish_reason, n.lineage, n.depth) for n in tree.nodes]
        return [told, [round(one.cumulative_logprob, 3) for (one,) in scores]]


async def attack_sessions(
    address: str, channel: grpc.aio.Channel, stub: Any, model: ServedModel, seed: int, count: int
) -> TreesFound:
    """Half of the sessions one after another, the other half at once, beside a good one again and again."""
    found = TreesFound()
    attacker = SessionAttacker(channel, stub, model, found)
    async with AsyncClient(address) as client:
        known = await good_tree(client)
        for number in range(count // 2):
            await attacker.attack(seed + number, steps=True)
        left = asyncio.gather(*(attacker.attack(seed + n, steps=False) for n in range(count // 2, count)))
        while True:
            done = left.done()
            if await good_tree(client) == known:
                found.exact_neighbours += 1
            else:
                found.faults.append("neighbour: another tree")
            if done:
                break
        await left
    return found
