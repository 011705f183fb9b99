"""Nodes that take no step of the engine: roots, forks, extensions, truncations, imports; and exports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forkdecode.errors import CapacityError, invalid
from forkdecode.requests.prepare import RequestMaker
from forkdecode.step import I64
from forkdecode.tree import lineages
from forkdecode.tree.constrained import Constraints
from forkdecode.tree.memory import HeldNodes
from forkdecode.tree.node import NodeTable, TreeNode
from forkdecode.tree.path import Begun, Path
from forkdecode.tree.text import TextState
from forkdecode.tree_types import Extend, Fork, Import, NodeInfo, NodePath, TreeLimits, Truncate
from forkdecode.tree_types.events import NODE_REASONS


class Growth:
    """Makes the nodes of one session, within its limits."""

    def __init__(
        self,
        requests: RequestMaker,
        nodes: NodeTable,
        held: HeldNodes,
        constraints: Constraints,
        limits: TreeLimits,
    ) -> None:
        self._requests = requests
        self._info = requests.info
        self._tokens = requests.token_bytes
        self._nodes = nodes
        self._held = held
        self._constraints = constraints
        self._limits = limits

    def root(self, token_ids: Sequence[int], seed: int) -> TreeNode:
        """The node of a prompt."""
        self.check_length("prompt", len(token_ids))
        self.check_room(1, 0, len(token_ids))
        ids = np.array(token_ids, np.int64)
        text, state = TextState.empty(self._tokens).read_tokens(self._tokens, ids)
        lineage = lineages.root_lineage(seed)
        number = self._nodes.next_number
        return self._nodes.add(TreeNode(number, None, Path(None, ids), lineage, text=text, text_state=state))

    def make(self, command: Fork | Extend | Truncate | Import) -> list[TreeNode]:
        """Carries a command out. Raises what refuses it, and then has changed nothing."""
        if isinstance(command, Fork):
            return self._fork(command)
        if isinstance(command, Extend):
            return [self._extend(command)]
        if isinstance(command, Truncate):
            return [self._truncate(command)]
        return self._import(command)

    def check_room(self, count: int, depth: int, tokens: int) -> None:
        """Raises CapacityError for `count` more nodes, down to `depth`, of `tokens` own tokens in all."""
        limits = self._limits
        for field, asked, limit, what in (
            ("max_nodes", len(self._nodes) + count, limits.max_nodes, "nodes"),
            ("max_depth", depth, limits.max_depth, "edges from a root"),
            ("max_tokens", self._nodes.tokens + tokens, limits.max_tokens, "tokens of its nodes"),
        ):
            if asked > limit:
                raise CapacityError(
                    f"{field}: the tree would have {asked} {what}, and may have {limit}",
                    field=field,
                    limit=f"at most {limit} {what}",
                )

    def check_length(self, field: str, length: int) -> None:
        """Raises InvalidRequestError for a path that the model has no positions for."""
        limit = self._info.max_positions
        if length > limit:
            raise invalid(field, f"makes a path of {length} tokens", f"at most {limit} with this model")

    def check_tokens(self, tokens: int, limit: int) -> None:
        """Raises InvalidRequestError for a command about paths of that many tokens in all."""
        if tokens > limit:
            raise invalid("nodes", f"have paths of {tokens} tokens in all", f"at most {limit} in one command")

    def info(self, node: TreeNode) -> NodeInfo:
        """What clients are told of a node."""
        before: I64 = np.empty(0, np.int64)
        if self._nodes.parent(node) is None and node.start:
            before = node.path.token_ids()[: node.start]
        return NodeInfo(
            node=node.number,
            parent=node.parent if node.parent in self._nodes else None,
            depth=node.depth,
            state=node.state,
            start=node.start,
            token_ids=node.own_ids(),
            text=node.whole_text(),
            lineage=node.lineage,
            next_seed=node.next_seed,
            finish_reason=node.finish_reason,
            cumulative_logprob=node.cumulative_logprob,
            before_ids=tuple(before.tolist()),
            before_text=self._read(before)[0],
            item=node.item,
        )

    def export(self, node: TreeNode) -> NodePath:
        """A node at rest as a record."""
        generated = node.finish_reason is not None or bool(node.cumulative_logprob)
        begun, end = node.path.last_begun()
        return NodePath(
            model=self._info.name,
            node=node.number,
            parent=node.parent,
            token_ids=tuple(node.path.token_ids().tolist()),
            start=node.start,
            text=node.whole_text(),
            lineage=node.lineage,
            next_seed=node.next_seed,
            finished=node.state == "finished",
            finish_reason=node.finish_reason,
            cumulative_logprob=node.cumulative_logprob,
            logprobs=tuple(node.path.token_logprobs(node.start)) if generated else (),
            constraint=None if begun is None else begun.constraint,
            constraint_start=0 if begun is None else begun.start,
            constraint_end=end,
            item=node.item,
        )

    def _fork(self, command: Fork) -> list[TreeNode]:
        source = self._nodes.get("node", command.node, at_rest=True)
        self.check_room(command.n, source.depth + 1, 0)
        seeds = range(command.n) if command.seeds is None else command.seeds
        made = []
        for seed in seeds:
            lineage = lineages.forked(source.lineage, seed)
            made.append(self._child(source, source.path, lineage, "", source.text_state))
            source.had_seed(seed)
        for node in made:
            node.state = source.state
        self._held.share(source, made, source.path.length)
        return made

    def _extend(self, command: Extend) -> TreeNode:
        source = self._nodes.get("node", command.node, at_rest=True)
        given = command.continuation
        begins = source.text_state.strips_space
        token_ids = (
            self._requests.encode("continuation", given, begins=begins) if isinstance(given, str) else given
        )
        if not token_ids:
            raise invalid("continuation", "has no tokens", "at least one token")
        self._check_ids("continuation", token_ids)
        self.check_length("continuation", source.path.length + len(token_ids))
        self.check_room(1, source.depth + 1, len(token_ids))
        ids = np.array(token_ids, np.int64)
        text, state = source.text_state.read_tokens(self._tokens, ids)
        lineage = lineages.extended(source.lineage, ids)
        path = Path(source.path, ids, begun=self._constraints.after(source.path, ids))
        made = self._child(source, path, lineage, text, state)
        self._held.share(source, [made], source.path.length)
        return made

    def _truncate(self, command: Truncate) -> TreeNode:
        source = self._nodes.get("node", command.node, at_rest=True)
        length = command.num_tokens
        if not source.base <= length <= source.path.length:
            raise invalid(
                "num_tokens",
                f"{length} is out of range",
                f"{source.base} to {source.path.length} for node {source.number}",
            )
        parent: TreeNode | None = source
        while parent is not None and parent.path.length > length:
            parent = self._nodes.parent(parent)
        start = source.base if parent is None else parent.path.length
        self.check_room(1, 0 if parent is None else parent.depth + 1, length - start)
        path = source.path.up_to(length)
        before = self._read(path.token_ids()[:start])[1] if parent is None else parent.text_state
        text, state = before.read_tokens(self._tokens, path.token_ids(start))
        lineage = lineages.truncated(source.lineage, length)
        made = self._child(parent, path, lineage, text, state, start=start, base=source.base)
        made.cumulative_logprob = sum(path.token_logprobs(start))
        if length == source.path.length:
            made.state = source.state
        self._held.share(source, [made], length)
        return made

    def _import(self, command: Import) -> list[TreeNode]:
        number, made = self._nodes.next_number, dict[int, TreeNode]()
        above = {name: self._nodes.get("parents", node, at_rest=True) for name, node in command.parents}
        for path in command.paths:
            parent = None if path.parent is None else made.get(path.parent) or above.get(path.parent)
            node = self._imported(number + len(made), path, parent)
            if path.node in made:
                raise invalid("paths", f"node {path.node} stands twice", "each node once")
            made[path.node] = node
        nodes = list(made.values())
        self.check_room(len(nodes), max(node.depth for node in nodes), sum(node.counted for node in nodes))
        return [self._nodes.add(node) for node in nodes]

    def _imported(self, number: int, given: NodePath, parent: TreeNode | None) -> TreeNode:
        if given.model != self._info.name:
            raise invalid("paths", f"node {given.node} is of model {given.model!r}", f"{self._info.name!r}")
        self._check_ids("paths", given.token_ids)
        self.check_length("paths", len(given.token_ids))
        ids = np.array(given.token_ids, np.int64)
        before = None if parent is None else parent.path
        if before is not None and (
            before.length != given.start or (before.token_ids() != ids[: given.start]).any()
        ):
            raise invalid("paths", f"node {given.node} does not go on from its parent", "exported nodes")
        path = _imported_path(before, ids, given)
        state = self._read(ids[: given.start])[1]
        text, after = state.read_tokens(self._tokens, ids[given.start :])
        if not text.startswith(given.text):
            raise invalid(
                "paths", f"the text of node {given.node} is not that of its tokens", "exported nodes"
            )
        node = TreeNode(
            number,
            parent,
            path,
            given.lineage,
            text=given.text,
            text_state=after,
            state="finished" if given.finished else "stopped",
            start=given.start,
            base=(given.start or len(ids)) if parent is None else None,
        )
        node.next_seed = given.next_seed
        node.cumulative_logprob = given.cumulative_logprob
        node.item = given.item
        node.finish_reason = next((reason for reason in NODE_REASONS if reason == given.finish_reason), None)
        return node

    def _child(
        self,
        parent: TreeNode | None,
        path: Path,
        lineage: int,
        text: str,
        text_state: TextState,
        start: int | None = None,
        base: int | None = None,
    ) -> TreeNode:
        number = self._nodes.next_number
        return self._nodes.add(
            TreeNode(number, parent, path, lineage, text=text, text_state=text_state, start=start, base=base)
        )

    def _read(self, ids: I64) -> tuple[str, TextState]:
        return TextState.empty(self._tokens).read_tokens(self._tokens, ids)

    def _check_ids(self, field: str, token_ids: Sequence[int]) -> None:
        size = self._info.vocab_size
        if max(token_ids) >= size:
            raise invalid(field, f"{max(token_ids)} is not a token id", f"integers from 0 to {size - 1}")


def _imported_path(before: Path | None, ids: I64, given: NodePath) -> Path:
    """All of `ids` after those before, in pieces: the node's own tokens, and those of its constraint."""
    begun = None if given.constraint is None else Begun(given.constraint, given.constraint_start, False)
    path, at = before, 0 if before is None else before.length
    for end in sorted({given.start, given.constraint_start, given.constraint_end, len(ids)}):
        if end > at:
            own = given.logprobs[at - given.start : end - given.start] if at >= given.start > 0 else ()
            logprobs = np.array(own, np.float32) if own else None
            is_under = given.constraint_start <= at < given.constraint_end
            path = Path(path, ids[at:end], logprobs, begun if is_under else None)
            at = end
    assert path is not None, "a path has tokens"
    return path
