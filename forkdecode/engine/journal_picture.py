"""Pictures of what a step journal holds: each request's samples or beams, and the trees of sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forkdecode.calls.picture import Picture
from forkdecode.engine.film import Film, Followed, SeenTree
from forkdecode.engine.picture_nodes import Bytes, Sketch, finished, grow_to
from forkdecode.engine.replay import replay
from forkdecode.engine.replay_run import RunReplay
from forkdecode.errors import invalid
from forkdecode.scheduler.events import CandidateRecord, GroupFailed, GroupFinished
from forkdecode.scheduler.group import SequenceGroup
from forkdecode.scheduler.request import NodeRef, Release, Share
from forkdecode.types import Continuations

MAX_NODES = 20_000
"""Of one picture."""


def journal_picture(
    path: Path, only: str | None = None, until: int | None = None, bytes_of: Bytes | None = None
) -> Picture:
    """only: the id of a request or the name of a tree. bytes_of: of a token id, where the journal has no
    vocabulary. Raises what replay() raises, and InvalidRequestError where there is nothing to show, or
    more than MAX_NODES nodes. A journal that breaks is shown as far as it can be replayed."""
    camera = _Camera(only)
    found = replay(path, until, watch=camera.watch)
    if not camera.roots:
        raise invalid("only", "the journal has nothing of it", "a request or a tree of the journal, or none")
    notes = [note for note in (found.unfinished, found.broken and str(found.broken)) if note]
    return camera.picture(f"{path.name}{f': {only}' if only else ''}", "; ".join(notes), bytes_of)


class _Camera:
    """Looks at a scheduler after each record that it is led through."""

    def __init__(self, only: str | None) -> None:
        self._only = only
        self.roots: list[Sketch] = []
        self._groups: dict[str, Followed] = {}
        self._trees: dict[str, SeenTree] = {}
        self._steps = ["before the first step"]
        self._run: RunReplay | None = None
        self._film = Film()
        self._count = 0

    @property
    def _now(self) -> int:
        return len(self._steps) - 1

    def watch(self, run: RunReplay, kind: str, parts: Sequence[Any]) -> None:
        if run is not self._run:
            self._run, self._groups = run, {}
        if kind in ("add", "like"):
            self._added(run.scheduler.groups[parts[0].request_id])
        elif kind == "tree":
            self._obeyed(parts[0])
        elif kind == "plan":
            self._steps.append(f"step {run.step}")
        elif kind in ("events", "cancel"):
            self._moved(run)
            if kind == "events" and self._groups:
                self._film.expose(self._now, run, self._groups.values(), self._trees)
            for name in [n for n in self._groups if n not in run.scheduler.groups]:
                del self._groups[name]

    def picture(self, title: str, notes: str, bytes_of: Bytes | None) -> Picture:
        """Of all that was seen."""
        if self._run is not None and self._run.tokens is not None:
            bytes_of = self._run.tokens.of
        order, nodes = finished(self.roots, bytes_of)
        return Picture(title, tuple(self._steps), nodes, notes, self._film.blocks(order))

    # -- requests ---------------------------------------------------------------------------------

    def _added(self, group: SequenceGroup) -> None:
        request = group.request
        names = {request.request_id, *(ref.tree for ref in (request.origin, request.keep) if ref is not None)}
        if self._only is not None and self._only not in names:
            return
        prompt = tuple(request.prompt.tolist())
        if request.origin is None:
            root = self._root(request.request_id, prompt)
        else:
            root = self._node(request.origin, prompt)
            root.gone = None
        self._groups[request.request_id] = Followed(group, root, [root])

    def _root(self, name: str, tokens: Sequence[int]) -> Sketch:
        made = Sketch(name, None, "prompt", 0, self._now)
        self.roots.append(made)
        self._given(made, tokens)
        return made

    def _given(self, node: Sketch, tokens: Sequence[int]) -> None:
        self._counted()
        for token in tokens:
            node.add(token, self._now)
        node.ended = self._now

    def _node(self, ref: NodeRef, path: tuple[int, ...]) -> Sketch:
        """The node of a session, whose path is known now."""
        tree = self._trees.setdefault(ref.tree, SeenTree())
        if ref.node not in tree.nodes:
            above = tree.sources.get(ref.node)
            if above is None or not _begins(path, tree.paths.get(above)):
                fitting = [n for n, p in tree.paths.items() if _begins(path, p)]
                above = max(fitting, key=lambda n: len(tree.paths[n]), default=None)
            name = f"{ref.tree}: {ref.node}" if above is None else str(ref.node)
            if above is None:
                made = self._root(name, path)
            else:
                made = tree.nodes[above].child(name, "given", self._now)
                self._given(made, path[made.start :])
            tree.nodes[ref.node], tree.paths[ref.node] = made, path
        return tree.nodes[ref.node]

    def _obeyed(self, op: Share | Release) -> None:
        if isinstance(op, Share):
            if self._only in (None, op.source.tree):
                tree = self._trees.setdefault(op.source.tree, SeenTree())
                tree.sources.update({target.node: op.source.node for target in op.targets})
        elif op.tree in self._trees and op.nodes is not None:
            nodes = self._trees[op.tree].nodes
            for node in (nodes[number] for number in op.nodes if number in nodes):
                node.gone = self._now

    # -- steps ------------------------------------------------------------------------------------

    def _moved(self, run: RunReplay) -> None:
        for one in self._groups.values():
            while one.seen < one.group.history.steps:
                self._grow(one)
        for event in run.events:
            if isinstance(event, (GroupFinished, GroupFailed)) and event.request_id in self._groups:
                self._ended(self._groups[event.request_id], event.candidates)

    def _grow(self, one: Followed) -> None:
        """The next step of its history: rows go on, fork and end."""
        parents, tokens, logprobs = one.group.history.step(one.seen)
        one.seen += 1
        forks = Counter(parents.tolist())
        rows: list[Sketch] = []
        for parent, token, logprob in zip(parents.tolist(), tokens.tolist(), logprobs.tolist(), strict=True):
            node = one.rows[parent]
            if node is one.root or forks[parent] > 1:
                node.ended = self._now
                node = self._child(one, node)
            node.add(token, self._now, logprob)
            rows.append(node)
        for node in {id(n): n for n in one.rows}.values():
            if node is not one.root and node not in rows and not node.children:
                node.ended = node.gone = self._now
        one.rows = rows
        if one.group.policy.streams_candidates and rows:
            one.samples.update(zip(one.group.rows.candidate.tolist(), rows, strict=False))

    def _child(self, one: Followed, node: Sketch) -> Sketch:
        self._counted()
        made = node.child(f"{one.group.request_id}/{len(node.children)}", "generated", self._now)
        if node is one.root:
            cached, prompt = one.group.costs.cached_tokens, one.group.request.prompt_len
            first = not one.made
            made.computed = prompt - cached if first else 0
            made.shared = cached if first else prompt
        one.made.append(made)
        return made

    def _ended(self, one: Followed, candidates: Sequence[CandidateRecord]) -> None:
        for candidate in candidates:
            node = self._leaf(one, candidate)
            node.ended = self._now if node.ended is None else node.ended
            node.reason, node.score = candidate.finish_reason, candidate.score
            for above in node.upwards():
                if above is one.root:
                    break
                above.kept, above.gone = True, None
        for node in one.rows:
            if node is not one.root and not node.kept and not node.children:
                node.ended = node.gone = self._now
        one.rows = []

    def _leaf(self, one: Followed, candidate: CandidateRecord) -> Sketch:
        """Where a candidate ends. Its last token is in no row; and one that is done in its first step has
        had none."""
        if not one.group.policy.streams_candidates:
            return grow_to(one.root, candidate.token_ids, self._now)
        node = one.samples.get(candidate.index)
        if isinstance(one.group.request.strategy, Continuations):
            # Several tokens of them come in one step, so nobody has seen whose row is whose.
            ids = list(candidate.token_ids)
            fitting = [n for n in one.made if not n.kept and n.tokens == ids[: len(n.tokens)]]
            node = max(fitting, key=lambda n: len(n.tokens), default=None)
        if node is None:
            node = self._child(one, one.root)
        for token in candidate.token_ids[len(node.tokens) :]:
            node.add(token, self._now if node.ended is None else node.ended)
        request = one.group.request
        if request.keep is not None:
            number = request.keep.node + candidate.index
            tree = self._trees.setdefault(request.keep.tree, SeenTree())
            tree.nodes[number], node.name = node, str(number)
            tree.paths[number] = (*request.prompt.tolist(), *candidate.token_ids)
        return node

    def _counted(self) -> None:
        self._count += 1
        if self._count > MAX_NODES:
            raise invalid("only", f"the journal has more than {MAX_NODES} nodes", "one request or one tree")


def _begins(path: tuple[int, ...], beginning: tuple[int, ...] | None) -> bool:
    return beginning is not None and path[: len(beginning)] == beginning
