"""From commands that take steps of the engine to ordinary requests, none of them sent yet."""

from __future__ import annotations

from dataclasses import replace

from forkdecode.errors import invalid
from forkdecode.requests.prepare import RequestMaker
from forkdecode.requests.terms import Terms
from forkdecode.scheduler.request import DecodeRequest, NodeRef
from forkdecode.step import I64
from forkdecode.tree import lineages
from forkdecode.tree.constrained import Constraints
from forkdecode.tree.growth import Growth
from forkdecode.tree.memory import HeldNodes
from forkdecode.tree.node import NodeTable, TreeNode
from forkdecode.tree.path import Begun
from forkdecode.tree.running import DecodeRun, Run, ScoreRun
from forkdecode.tree.text import NodeText
from forkdecode.tree_types import MAX_ASKED_TOKENS, Decode, ScoreNodes
from forkdecode.types import Continuations, Options


class Plans:
    """Checks commands on nodes and makes their requests. cache_salt: of all of them."""

    def __init__(
        self,
        tree: str,
        requests: RequestMaker,
        nodes: NodeTable,
        held: HeldNodes,
        growth: Growth,
        constraints: Constraints,
        cache_salt: str,
    ) -> None:
        self._tree = tree
        self._requests = requests
        self._nodes = nodes
        self._held = held
        self._growth = growth
        self._constraints = constraints
        self._cache_salt = cache_salt
        self._tokens = requests.token_bytes

    def decode(self, command: Decode) -> tuple[list[TreeNode], list[Run]]:
        """The children, still to be added, and the requests. Raises what refuses the command."""
        nodes = [self._decodable(number) for number in command.nodes]
        self._growth.check_tokens(sum(node.path.length for node in nodes), MAX_ASKED_TOKENS)
        n, most = command.n, command.options.max_tokens
        depth = max(node.depth for node in nodes) + 1
        self._growth.check_room(len(nodes) * n, depth, len(nodes) * n * most)
        options = command.options
        asked = replace(options, stop=options.stop + command.step, cache_salt=self._cache_salt)
        terms = self._requests.terms(command.strategy, asked, self._name(command, 0))
        steps = self._requests.named(command.step) - self._requests.named(options.stop)
        steps -= frozenset(options.stop_token_ids)
        children: list[TreeNode] = []
        runs: list[Run] = []
        for place, node in enumerate(nodes):
            first = self._nodes.next_number + len(children)
            begun = self._constraints.begun(node, options.constraint)
            request = self._decode_request(command, terms, place, node, first, begun)
            own = [self._child(first + i, node, request, i) for i in range(n)]
            texts = [NodeText(self._tokens, request, node.text_state, command.step, steps) for _ in own]
            blocks = self._held.growth(node.path.length, most)
            runs.append(DecodeRun(request, node, own, texts, begun, self._nodes, self._held, blocks))
            children += own
        self._held.make_room(sum(run.blocks for run in runs), nodes)
        return children, runs

    def score(self, command: ScoreNodes) -> list[Run]:
        """The requests. Raises what refuses the command."""
        nodes = self._nodes.all(command.nodes, at_rest=True)
        each = sum(map(len, command.continuations))
        self._growth.check_tokens(sum(node.path.length + each for node in nodes), MAX_ASKED_TOKENS)
        asked = Options(logprobs=command.top_logprobs, priority=command.priority, cache_salt=self._cache_salt)
        terms = None
        if command.continuations:
            terms = self._requests.score_terms(command.continuations, asked, self._name(command, 0))
        runs: list[Run] = [
            self._own_tokens(command, place, node, asked)
            if terms is None
            else self._score_run(command, place, self._with_room(node), node, node.path.token_ids(), terms)
            for place, node in enumerate(nodes)
        ]
        origins = [run.origin for run in runs if run.origin is not None]
        self._held.make_room(sum(run.blocks for run in runs), origins)
        return runs

    def _decodable(self, number: int) -> TreeNode:
        node = self._nodes.get("nodes", number, at_rest=True)
        if node.state == "finished":
            ended = node.path.ids[-1] in self._requests.info.eos_ids
            why = "it ends with an EOS token" if ended else "as it was told to be"
            raise invalid("nodes", f"{number} is finished: {why}", "nodes that are not; extend it first")
        return self._with_room(node)

    def _with_room(self, node: TreeNode) -> TreeNode:
        most = self._requests.info.max_positions - 1
        if node.path.length > most:
            problem = f"{node.number} has {node.path.length} tokens"
            raise invalid("nodes", problem, f"at most {most} with this model")
        return node

    def _decode_request(
        self, command: Decode, terms: Terms, place: int, node: TreeNode, first: int, begun: Begun | None
    ) -> DecodeRequest:
        start = None if begun is None else begun.start
        request = self._requests.of_path(node.path.token_ids(), terms, self._name(command, place), start)
        return replace(
            request,
            seed=lineages.decode_seed(node.lineage, command.seed(place)),
            origin=self._held.ref(node),
            keep=NodeRef(self._tree, first),
        )

    def _child(self, number: int, node: TreeNode, request: DecodeRequest, index: int) -> TreeNode:
        child = TreeNode(
            number,
            node,
            node.path,
            lineages.decoded(request.seed, index),
            text_state=node.text_state,
            state="generating",
        )
        child.counted = request.options.max_tokens
        return child

    def _own_tokens(self, command: ScoreNodes, place: int, node: TreeNode, asked: Options) -> ScoreRun:
        """The node's own tokens after its parent."""
        path = node.path.token_ids()
        if not 0 < node.start < len(path):
            problem = f"{node.number} has no tokens of its own after others"
            raise invalid("continuations", problem, "at least one for such a node")
        own = tuple(path[node.start :].tolist())
        terms = self._requests.score_terms((own,), asked, self._name(command, place))
        origin = self._nodes.parent(node)
        if origin is not None and origin.path.length != node.start:
            origin = None
        return self._score_run(command, place, node, origin, path[: node.start], terms)

    def _score_run(
        self,
        command: ScoreNodes,
        place: int,
        node: TreeNode,
        origin: TreeNode | None,
        path: I64,
        terms: Terms,
    ) -> ScoreRun:
        request = self._requests.of_path(path, terms, self._name(command, place))
        if origin is not None:
            request = replace(request, origin=self._held.ref(origin))
        held = 0 if origin is None else len(path)
        blocks = sum(self._held.growth(held, len(path) - held + length) for length in _lengths(request))
        prepared = self._requests.scored(request)
        return ScoreRun(request, prepared, node, origin, command.command_id, blocks)

    def _name(self, command: Decode | ScoreNodes, place: int) -> str:
        return f"{self._tree}/{command.command_id}.{place}"


def _lengths(request: DecodeRequest) -> list[int]:
    assert isinstance(request.strategy, Continuations), "a score request"
    return list(map(len, request.strategy.token_ids))
