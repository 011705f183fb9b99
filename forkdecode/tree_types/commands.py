"""What steers a tree session. Each command has an id that its sender chooses and that its answers bear."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from forkdecode.checks import (
    check_bool,
    check_float,
    check_int,
    check_items,
    check_texts,
    check_token_ids,
    check_unicode,
    check_words,
    keep,
    shown,
)
from forkdecode.errors import invalid
from forkdecode.tree_types.limits import MAX_TTL
from forkdecode.tree_types.paths import NodePath
from forkdecode.types import MAX_COUNT, MAX_SEED, MAX_STOP_BYTES, Greedy, Options, Sample

MAX_COMMAND_ID = 2**63 - 1
MAX_TOP_LOGPROBS = 1024


def _check_nodes(name: str, value: object) -> tuple[int, ...]:
    """One node or several, none twice."""
    items = [value] if isinstance(value, int) else check_items(name, value, "node numbers")
    nodes = tuple(check_int(name, item, 0) for item in items)
    if not 0 < len(nodes) <= MAX_COUNT:
        raise invalid(name, f"are {len(nodes)}", f"1 to {MAX_COUNT} nodes")
    if len(set(nodes)) < len(nodes):
        twice = next(node for i, node in enumerate(nodes) if node in nodes[:i])
        raise invalid(name, f"{twice} stands twice", "each node once")
    return nodes


def _check_command(command: Command, nodes: str | None) -> None:
    keep(command, "command_id", check_int, 0, MAX_COMMAND_ID)
    if nodes == "nodes":
        keep(command, nodes, _check_nodes)
    elif nodes is not None:
        keep(command, nodes, check_int, 0)


@dataclass(frozen=True, slots=True)
class Fork:
    """Makes n nodes of the same path, each with a lineage of its own: what is drawn from them differs.

    seeds: one each, 0 to 2**64 - 1; by default 0, 1, .... Equal seeds make equal lineages. The forks of a
    finished node are finished.
    """

    command_id: int
    node: int
    n: int = 1
    seeds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_command(self, "node")
        keep(self, "n", check_int, 1, MAX_COUNT)
        if self.seeds is not None:
            keep(self, "seeds", _check_seeds)
            if len(self.seeds) != self.n:
                raise invalid("seeds", f"are {len(self.seeds)} for {self.n} forks", "one a fork, or None")


def _check_seeds(name: str, value: object) -> tuple[int, ...]:
    return tuple(check_int(name, seed, 0, MAX_SEED) for seed in check_items(name, value, "seeds"))


@dataclass(frozen=True, slots=True)
class Decode:
    """Decodes strategy.n children of each node, all nodes in one batch; the children of one node share one
    row for its last token. Children are numbered node by node.

    strategy: Greedy or Sample. seeds: one per node, 0 by default; they make repeated draws from a node
    differ, and replace the strategy's own seed, which would apply to every node. Draws depend only on a
    node's lineage, path and seed, the strategy and the options. options: as in an ordinary request whose
    prompt is the node's path; cache_salt is the session's, and the options of beams are refused. step: texts
    that end a child like `stop`, but stay in its text, with the whole token that completes them, so that the
    texts along a path form the whole text.
    """

    command_id: int
    nodes: tuple[int, ...]
    strategy: Greedy | Sample = field(default_factory=Greedy)
    options: Options = field(default_factory=Options)
    step: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _check_command(self, "nodes")
        if not isinstance(self.strategy, (Greedy, Sample)):
            raise invalid("strategy", f"{shown(self.strategy)} does not make nodes", "Greedy or Sample")
        if not isinstance(self.options, Options):
            raise invalid("options", f"{shown(self.options)} is not an Options object", "forkdecode.Options")
        if self.options.cache_salt:
            raise invalid("cache_salt", "is the session's", "none here")
        stops = len("".join(self.options.stop).encode())
        keep(self, "step", check_texts, MAX_STOP_BYTES - stops)
        if self.seeds is not None:
            keep(self, "seeds", _check_seeds)
            if self.strategy_seed is not None:
                raise invalid("seeds", "stand beside the strategy's seed", "either")
            if len(self.seeds) != len(self.nodes):
                raise invalid(
                    "seeds", f"are {len(self.seeds)} for {len(self.nodes)} nodes", "one a node, or None"
                )

    @property
    def strategy_seed(self) -> int | None:
        """The strategy's own seed."""
        return self.strategy.seed if isinstance(self.strategy, Sample) else None

    def seed(self, index: int) -> int:
        """That of nodes[index]."""
        return self.seeds[index] if self.seeds is not None else self.strategy_seed or 0

    @property
    def draws(self) -> bool:
        """Whether the seed matters."""
        return isinstance(self.strategy, Sample)

    @property
    def n(self) -> int:
        """Children a node."""
        return self.strategy.n if isinstance(self.strategy, Sample) else 1


@dataclass(frozen=True, slots=True)
class Extend:
    """Makes a child that continues with given tokens, or with a text, which is tokenized by itself; the name
    of a special token in it is that token."""

    command_id: int
    node: int
    continuation: str | tuple[int, ...]

    def __post_init__(self) -> None:
        _check_command(self, "node")
        is_text = isinstance(self.continuation, str)
        keep(self, "continuation", check_unicode if is_text else check_token_ids)
        if not self.continuation:
            raise invalid("continuation", "is empty", "a text or at least one token id")


@dataclass(frozen=True, slots=True)
class ScoreNodes:
    """Asks for the log-likelihood of each continuation of each node; without continuations, of the node's own
    tokens after its parent. top_logprobs: also report this many most likely tokens at each position."""

    command_id: int
    nodes: tuple[int, ...]
    continuations: tuple[str | tuple[int, ...], ...] = ()
    top_logprobs: int = 0
    priority: int = 0

    def __post_init__(self) -> None:
        _check_command(self, "nodes")
        keep(self, "continuations", check_words, MAX_COUNT)
        keep(self, "top_logprobs", check_int, 0, MAX_TOP_LOGPROBS)
        keep(self, "priority", check_int, -(2**31), 2**31 - 1)


@dataclass(frozen=True, slots=True)
class Prune:
    """Releases nodes: they stop, scoring them is cancelled, their KV is freed, and their numbers become
    invalid. subtree: also release their descendants; otherwise these stay and continue, since a path is
    complete without its ancestors."""

    command_id: int
    nodes: tuple[int, ...]
    subtree: bool = True

    def __post_init__(self) -> None:
        _check_command(self, "nodes")
        keep(self, "subtree", check_bool)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Makes a node of the first num_tokens tokens of a node's path, the prompt counted and not cut into.
    It is a child of the last ancestor that is no longer than that."""

    command_id: int
    node: int
    num_tokens: int

    def __post_init__(self) -> None:
        _check_command(self, "node")
        keep(self, "num_tokens", check_int, 1)


@dataclass(frozen=True, slots=True)
class Pin:
    """Keeps the session from letting go of nodes' KV for ttl seconds; None: until unpinned."""

    command_id: int
    nodes: tuple[int, ...]
    ttl: float | None = None

    def __post_init__(self) -> None:
        _check_command(self, "nodes")
        if self.ttl is not None:
            keep(self, "ttl", check_float, 0.0, MAX_TTL)


@dataclass(frozen=True, slots=True)
class Unpin:
    """Takes Pin back."""

    command_id: int
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_command(self, "nodes")


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends nodes that are being generated where they are; they can be decoded on. No effect on others."""

    command_id: int
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_command(self, "nodes")


@dataclass(frozen=True, slots=True)
class Finish:
    """Says that nothing more is decoded from nodes: stops them, marks them finished, gives up their KV."""

    command_id: int
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_command(self, "nodes")


@dataclass(frozen=True, slots=True)
class Export:
    """Asks for all that is needed to make nodes again: see NodePath."""

    command_id: int
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_command(self, "nodes")


@dataclass(frozen=True, slots=True)
class Import:
    """Makes exported nodes. One whose parent is among `paths`, before it, or among `parents`, becomes its
    child; the others become roots. What is decoded from them is what would have been decoded from the
    originals.

    parents: of what earlier commands have imported: NodePath.node, and the node of this session that was made
    of it. So nodes that are too many for one command are imported by several.
    """

    command_id: int
    paths: tuple[NodePath, ...]
    parents: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _check_command(self, None)
        paths = tuple(check_items("paths", self.paths, "NodePath"))
        if not 0 < len(paths) <= MAX_COUNT:
            raise invalid("paths", f"are {len(paths)}", f"1 to {MAX_COUNT} of them")
        for path in paths:
            if not isinstance(path, NodePath):
                raise invalid("paths", f"{shown(path)} is no path", "NodePath objects")
        object.__setattr__(self, "paths", paths)
        keep(self, "parents", _check_parents)


def _check_parents(name: str, value: object) -> tuple[tuple[int, int], ...]:
    pairs = []
    for pair in check_items(name, value, "pairs of node numbers"):
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise invalid(name, f"{shown(pair)} is no pair", "pairs of node numbers")
        pairs.append((check_int(name, pair[0], 0), check_int(name, pair[1], 0)))
    if len(pairs) > MAX_COUNT or len(dict(pairs)) < len(pairs):
        raise invalid(
            name, f"are {len(pairs)}, of {len(dict(pairs))} records", f"at most {MAX_COUNT}, each of another"
        )
    return tuple(pairs)


Command: TypeAlias = (
    Fork | Decode | Extend | ScoreNodes | Prune | Truncate | Pin | Unpin | Stop | Finish | Export | Import
)
