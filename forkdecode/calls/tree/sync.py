"""A tree session for threads."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack, overload

from forkdecode.calls.timeout import check_timeout
from forkdecode.calls.tree import verbs
from forkdecode.calls.tree.drawing import draw, write_page
from forkdecode.calls.tree.link import TreeLink
from forkdecode.calls.tree.node import Node
from forkdecode.calls.tree.parts import Importing, exports
from forkdecode.calls.tree.patience import Wait
from forkdecode.calls.tree.receiver import Receiver
from forkdecode.calls.tree.saved import read_saved, while_open, write_saved
from forkdecode.calls.tree.stream import NodeStream
from forkdecode.calls.tree.verbs import Nodes, Verb
from forkdecode.calls.tree.view import Reply, TreeView
from forkdecode.checks import check_float
from forkdecode.errors import ForkdecodeError, invalid
from forkdecode.results import ScoredContinuation
from forkdecode.tree_types import Command, Decode, NodePath, TreeLimits, TreeOpened
from forkdecode.types import Greedy, OptionKeywords, Options, Sample

T = TypeVar("T")


class Tree:
    """A tree of sequences that you steer. Created by LLM.tree and Client.tree; safe to use from several
    threads. Closing or dropping it ends what is running and frees all its KV.

    Every method raises InvalidRequestError naming the field at fault (`nodes` of another tree, pruned,
    finished, ...), CapacityError beyond the session's or the machine's limits, and the error that ended the
    session.
    """

    def __init__(self, link: TreeLink, timeout: float | None = None) -> None:
        self._link = link
        self._timeout = timeout
        self._view = TreeView()
        self._receiver = Receiver(link, self._view)
        self._finalizer = weakref.finalize(self, link.close)
        opened = self._receiver.until(lambda: self._view.opened)
        assert opened is not None, "waited for"
        self._opened: TreeOpened = opened

    @property
    def name(self) -> str:
        """The session's name, unique where it runs."""
        return self._opened.tree

    @property
    def model(self) -> str:
        """The name of the model that decodes it."""
        return self._opened.model

    @property
    def secret(self) -> str:
        """Resumes the session on its server, together with the name; "" in process. Keep it secret."""
        return self._opened.secret

    @property
    def limits(self) -> TreeLimits:
        """The limits that apply to the session."""
        return self._opened.limits

    @property
    def max_positions(self) -> int | None:
        """The most tokens that a path can have with the model; None if the server does not report it."""
        return self._opened.max_positions

    @property
    def seed(self) -> int:
        """The same prompt, seed and commands make the same tree."""
        return self._opened.seed

    @property
    def timeout(self) -> float | None:
        """Seconds for each method, None for no limit: at first the client's, and None in process. May be
        set. A method that takes longer raises DeadlineError, a TimeoutError; decode() then prunes what it was
        generating."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._timeout = check_timeout("timeout", seconds)

    @property
    def root(self) -> Node:
        """The node of the prompt, or the first one imported. Raises InvalidRequestError before there is
        one."""
        root = self._view.root or next(iter(self.nodes), None)
        if root is None:
            raise invalid("prompt", "this tree was opened without one", "import_() first")
        return root

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes that are not pruned, by number."""
        with self._receiver.changed:
            return tuple(self._view.nodes.values())

    def node(self, number: int) -> Node:
        """The node with a number. Raises InvalidRequestError."""
        with self._receiver.changed:
            if number not in self._view.nodes:
                raise invalid("node", f"{number!r} is not in this tree", "numbers of live nodes")
            return self._view.nodes[number]

    def decode(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[Node]:
        """Decodes children of one or several nodes, all in one batch, and waits for them: strategy.n children
        per node, node by node.

        strategy: Greedy() by default. step: texts that end a child and stay in its text. seed: by default
        each node's next one, so that decoding a node again makes a new draw. Options as in LLM.decode.
        """
        verb = verbs.decode(nodes, strategy, step, seed, options, given, at_once=False)
        return self._run(verb)

    def start(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> list[Node]:
        """Like decode(), without waiting: returns children that are being generated; see wait()."""
        return self._run(verbs.decode(nodes, strategy, step, seed, options, given, at_once=True))

    def stream(
        self,
        nodes: Nodes,
        strategy: Greedy | Sample | None = None,
        *,
        step: str | Sequence[str] = (),
        seed: int | None = None,
        options: Options | None = None,
        **given: Unpack[OptionKeywords],
    ) -> NodeStream:
        """Like decode(), yielding the events of the children. The command is sent at once; closing or
        dropping the stream stops the children where they are."""
        verb = verbs.decode(nodes, strategy, step, seed, options, given, at_once=True, stream=True)
        wait = Wait(self._timeout)
        _, reply = self._send(verb)
        self._await(verb, reply, wait)
        return NodeStream(reply, partial(self._until, wait), partial(self._stop_running, reply))

    def wait(self, nodes: Nodes, timeout: float | None = None) -> None:
        """Waits until none of the nodes is being generated. Raises DeadlineError, a TimeoutError, after
        `timeout` seconds, or the tree's `timeout`."""
        chosen = verbs.some(nodes)
        verbs.check_own(chosen, self.name)
        seconds = self._timeout if timeout is None else max(0.0, check_float("timeout", timeout))
        self._until(Wait(seconds), lambda: not any(node.is_generating for node in chosen))

    def fork(self, node: Node, n: int = 1, *, seeds: Sequence[int] | None = None) -> list[Node]:
        """n nodes with the same path whose draws differ. seeds: by default the node's next ones."""
        return self._run(verbs.fork(node, n, seeds))

    def extend(self, node: Node, continuation: str | Sequence[int]) -> Node:
        """A child that continues with a text, tokenized by itself, or with token ids. The name of a special
        token in the text is that token, so pass text that you do not control as token ids (docs/options.md).
        """
        return self._run(verbs.extend(node, continuation))

    @overload
    def score(
        self,
        nodes: Node,
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> tuple[ScoredContinuation, ...]: ...

    @overload
    def score(
        self,
        nodes: Sequence[Node],
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> list[tuple[ScoredContinuation, ...]]: ...

    def score(
        self,
        nodes: Nodes,
        continuations: Sequence[str | Sequence[int]] = (),
        *,
        top_logprobs: int = 0,
        priority: int = 0,
    ) -> tuple[ScoredContinuation, ...] | list[tuple[ScoredContinuation, ...]]:
        """The log-likelihood of each continuation of each node; without continuations, of its own tokens."""
        scores = self._run(verbs.score(nodes, continuations, top_logprobs, priority))
        return scores[0] if isinstance(nodes, Node) else scores

    def prune(self, nodes: Nodes, *, subtree: bool = True) -> None:
        """Releases nodes, and their descendants unless `subtree` is False."""
        self._run(verbs.prune(nodes, subtree))

    def truncate(self, node: Node, num_tokens: int) -> Node:
        """A node with the first `num_tokens` tokens of a node's path, counting those of the prompt."""
        return self._run(verbs.truncate(node, num_tokens))

    def pin(self, nodes: Nodes, ttl: float | None = None) -> None:
        """Keeps the session from dropping the KV of nodes, for ttl seconds."""
        self._run(verbs.pin(nodes, ttl))

    def unpin(self, nodes: Nodes) -> None:
        """Reverts pin()."""
        self._run(verbs.unpin(nodes))

    def stop(self, nodes: Nodes) -> None:
        """Ends the generation of nodes at their current token."""
        self._run(verbs.stop(nodes))

    def finish(self, nodes: Nodes) -> None:
        """Marks nodes as finished: nothing more is decoded from them, and their KV is freed."""
        self._run(verbs.finish(nodes))

    def export(self, nodes: Nodes) -> list[NodePath]:
        """Plain records of nodes, for import_() in another session of the same model."""
        return [path for verb in exports(nodes) for path in self._run(verb)]

    def import_(self, paths: NodePath | Iterable[NodePath]) -> list[Node]:
        """Makes nodes from exported records, all or none. A node whose parent is earlier among `paths`
        becomes its child; the others become roots."""
        importing = Importing(paths, self._opened.max_command_bytes)
        try:
            for verb in importing.verbs():
                made = self._run(verb)
                importing.nodes += made
        except BaseException:
            with contextlib.suppress(ForkdecodeError):
                self.prune(importing.nodes, subtree=False)
            raise
        return importing.nodes

    def render(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        scores: Mapping[Node, float] | None = None,
    ) -> None:
        """Writes a self-contained HTML page showing the tree and its history.

        scores: shown at their nodes, including pruned ones; by default the log-probabilities. May be called
        after close(). Raises InvalidRequestError and OSError.
        """
        with self._receiver.changed:
            picture = draw(self._view, title, scores)
        write_page(path, picture)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        title: str | None = None,
        scores: Mapping[Node, float] | None = None,
    ) -> None:
        """Writes a file from which load() restores the nodes in another session of the same model, and
        `forkdecode tree show` makes the page of render(). Nodes that are being generated are only shown, and
        so are all nodes of a tree that has ended. Raises as render()."""
        paths: list[NodePath] = []
        with while_open(self._view):
            paths = self.export([node for node in self.nodes if not node.is_generating])
        with self._receiver.changed:
            picture = draw(self._view, title, scores)
        write_saved(path, picture, paths)

    def load(self, path: str | os.PathLike[str]) -> list[Node]:
        """Imports the nodes in a file of save(), or of exported nodes as JSON. Also raises OSError."""
        return self.import_(read_saved(path))

    def close(self) -> None:
        """Ends the session and frees everything it holds. Idempotent."""
        self._finalizer()

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, verb: Verb[T]) -> T:
        wait = Wait(self._timeout)
        command, reply = self._send(verb)
        try:
            self._await(verb, reply, wait)
        except BaseException:
            if not reply.ended:  # interrupted, or late
                self._give_up(command, reply)
            raise
        return verb.read(reply)

    def _send(self, verb: Verb[T]) -> tuple[Command | None, Reply]:
        with self._receiver.changed:
            if self._view.error is not None:
                raise self._view.error
            if verb.nothing:
                return None, Reply.of_nothing()
            verbs.check_own(verb.about, self.name)
            number, reply = self._view.expect(stream=verb.stream)
            try:
                command = verb.command(number)
                self._link.send(command)
            except BaseException:
                self._view.forget(number)
                raise
            return command, reply

    def _await(self, verb: Verb[T], reply: Reply, wait: Wait) -> None:
        self._until(wait, lambda: verb.ready(reply))
        # What fails after it was accepted is the children's, and who waits for those is told.
        if reply.error is not None and not (verb.at_once and reply.accepted):
            raise reply.error

    def _until(self, wait: Wait, done: Callable[[], bool]) -> None:
        try:
            self._receiver.until(done, wait.left())
        except TimeoutError as error:
            raise wait.failure(error) from None

    def _give_up(self, command: Command | None, reply: Reply) -> None:
        """The caller was interrupted, or is late: it will never learn of the nodes that it asked for."""
        if isinstance(command, Decode) and reply.nodes:
            with contextlib.suppress(ForkdecodeError):
                self._send(verbs.prune(reply.nodes, True))

    def _stop_running(self, reply: Reply) -> None:
        with contextlib.suppress(ForkdecodeError):
            self._send(verbs.stop(verbs.running(reply)))
