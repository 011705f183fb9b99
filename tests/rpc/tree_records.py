"""Hypothesis strategies of a tree session's commands and events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from hypothesis import strategies as st

from forkdecode import errors
from forkdecode.errors import ForkdecodeError
from forkdecode.results import ScoredContinuation
from forkdecode.rpc.convert_tree_commands import OpenCall
from forkdecode.tree_types import (
    MAX_COUNTED_SEED,
    Accepted,
    Command,
    Decode,
    Done,
    Export,
    Exported,
    Extend,
    Finish,
    Fork,
    Import,
    NodeDelta,
    NodeInfo,
    NodePath,
    NodeReason,
    NodeScored,
    NodesPruned,
    NodeState,
    NodeStopped,
    OpenTree,
    Pin,
    Prune,
    Refused,
    ScoreNodes,
    Stop,
    TreeEvent,
    TreeLimits,
    TreeOpened,
    Truncate,
    Unpin,
)
from forkdecode.tree_types.commands import MAX_COMMAND_ID
from forkdecode.tree_types.paths import PATH_REASONS
from forkdecode.types import MAX_SEED, Greedy, Sample
from tests.rpc import records

command_ids = st.integers(0, MAX_COMMAND_ID)
node = st.integers(0, 2**31 - 1)
nodes = st.lists(node, min_size=1, max_size=5, unique=True).map(tuple)
seed = st.integers(0, MAX_SEED)
positions = st.integers(0, 2**31 - 1)
ttls = st.none() | records.between(0, 1e9)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def forks(draw: st.DrawFn) -> Fork:
    n = draw(st.integers(1, 5))
    seeds = draw(st.none() | st.lists(seed, min_size=n, max_size=n).map(tuple))
    return Fork(draw(command_ids), draw(node), n, seeds)


@st.composite
def decodes(draw: st.DrawFn) -> Decode:
    chosen = draw(nodes)
    strategy = draw(st.just(Greedy()) | records.samples)
    own_seed = isinstance(strategy, Sample) and strategy.seed is not None
    seeds = st.lists(seed, min_size=len(chosen), max_size=len(chosen)).map(tuple)
    return Decode(
        draw(command_ids),
        chosen,
        strategy,
        replace(draw(records.options()), cache_salt=""),
        tuple(draw(st.lists(records.some_text, max_size=2))),
        None if own_seed else draw(st.none() | seeds),
    )


@st.composite
def paths(draw: st.DrawFn) -> NodePath:
    ids = draw(records.some_ids)
    start = draw(st.integers(0, len(ids)))
    own = len(ids) - start
    constraint = draw(st.none() | records.constraints) if len(ids) > 1 else None
    begun = 0 if constraint is None else draw(st.integers(1, len(ids) - 1))
    return NodePath(
        draw(records.texts),
        draw(node),
        draw(st.none() | node),
        ids,
        start,
        draw(records.texts),
        draw(seed),
        draw(st.integers(0, MAX_COUNTED_SEED)),
        draw(st.booleans()),
        draw(st.none() | st.sampled_from(PATH_REASONS)),
        draw(finite),
        draw(st.just(()) | st.lists(finite, min_size=own, max_size=own).map(tuple)),
        constraint,
        begun,
        0 if constraint is None else draw(st.integers(begun + 1, len(ids))),
        draw(st.none() | records.texts),
    )


pieces = records.some_text | records.some_ids
BY_KIND: dict[type[Command], st.SearchStrategy[Any]] = {
    Fork: forks(),
    Decode: decodes(),
    Extend: st.builds(Extend, command_ids, node, pieces),
    ScoreNodes: st.builds(
        ScoreNodes,
        command_ids,
        nodes,
        st.lists(pieces, max_size=3).map(tuple),
        st.integers(0, 1024),
        st.integers(-(2**31), 2**31 - 1),
    ),
    Prune: st.builds(Prune, command_ids, nodes, st.booleans()),
    Truncate: st.builds(Truncate, command_ids, node, st.integers(1, 2**31 - 1)),
    Pin: st.builds(Pin, command_ids, nodes, ttls),
    Unpin: st.builds(Unpin, command_ids, nodes),
    Stop: st.builds(Stop, command_ids, nodes),
    Finish: st.builds(Finish, command_ids, nodes),
    Export: st.builds(Export, command_ids, nodes),
    Import: st.builds(
        Import,
        command_ids,
        st.lists(paths(), min_size=1, max_size=3).map(tuple),
        st.dictionaries(node, node, max_size=3).map(lambda found: tuple(sorted(found.items()))),
    ),
}

limits: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "max_nodes": st.integers(1, 2**31 - 1),
        "max_depth": st.integers(0, 2**31 - 1),
        "max_tokens": st.integers(1, 2**31 - 1),
        "max_blocks": st.integers(1, 2**31 - 1),
        "idle_ttl": records.between(0, 1e9),
    },
)
openings = st.builds(
    OpenTree,
    st.none() | records.prompts,
    seed=st.none() | seed,
    cache_salt=records.texts,
)
opens = st.builds(OpenCall, openings, limits)

# -- events ---------------------------------------------------------------------------------------

states = st.sampled_from(get_args(NodeState))
reasons = st.none() | st.sampled_from(get_args(NodeReason))
infos = st.builds(
    NodeInfo,
    node,
    st.none() | node,
    positions,
    states,
    positions,
    records.ids,
    records.texts,
    seed,
    st.integers(0, MAX_COUNTED_SEED),
    reasons,
    records.doubles,
    records.ids,
    records.texts,
    st.none() | records.texts,
)
some_infos = st.lists(infos, max_size=3).map(tuple)
KINDS = [
    errors.InvalidRequestError,
    errors.CapacityError,
    errors.QueueFullError,
    errors.CancelledError,
    errors.GroupFailedError,
    errors.NoLegalTokenError,
    errors.UnavailableError,
    errors.EngineClosedError,
]


@st.composite
def told_errors(draw: st.DrawFn) -> ForkdecodeError:
    return draw(st.sampled_from(KINDS))(
        draw(records.texts),
        field=draw(st.none() | records.texts),
        limit=draw(st.none() | records.texts),
        retry_after=draw(st.none() | records.between(0, 1e6)),
    )


@st.composite
def deltas(draw: st.DrawFn) -> NodeDelta:
    tokens = draw(records.ids)
    return NodeDelta(draw(node), tokens, draw(records.texts), draw(records.logprobs_of(tokens)))


@st.composite
def scored(draw: st.DrawFn) -> NodeScored:
    found = []
    for index in range(draw(st.integers(0, 3))):
        tokens = draw(records.some_ids)
        each = draw(st.tuples(*(records.token_logprobs for _ in tokens)))
        found.append(ScoredContinuation(index, tokens, draw(records.texts), draw(records.doubles), each))
    return NodeScored(draw(command_ids), draw(node), tuple(found))


EVENTS: dict[type[TreeEvent], st.SearchStrategy[Any]] = {
    TreeOpened: st.builds(
        TreeOpened,
        records.texts,
        records.texts,
        seed,
        some_infos,
        limits.map(lambda wanted: TreeLimits(**wanted)),
        records.texts,
        st.none() | records.between(0, 1e9),
        st.none() | records.between(0, 1e9),
        st.none() | st.integers(0, 2**63),
        st.none() | st.integers(1, 2**16),
        st.none() | st.integers(1, 2**31),
    ),
    Accepted: st.builds(Accepted, command_ids, some_infos),
    Refused: st.builds(Refused, command_ids, told_errors()),
    Done: st.builds(
        Done, command_ids, st.lists(records.usages, max_size=2).map(tuple), st.none() | told_errors()
    ),
    NodeDelta: deltas(),
    NodeStopped: st.builds(
        NodeStopped,
        node,
        states,
        reasons,
        records.doubles,
        st.none() | told_errors(),
        st.none() | records.texts,
    ),
    NodeScored: scored(),
    NodesPruned: st.builds(NodesPruned, command_ids, st.lists(node, max_size=4).map(tuple)),
    Exported: st.builds(Exported, command_ids, st.lists(paths(), max_size=3).map(tuple)),
}


def plain(event: TreeEvent) -> Any:
    """An event that can be compared: errors by what they tell."""
    error: ForkdecodeError | None = getattr(event, "error", None)
    if error is None:
        return event
    told = (type(error), str(error), error.field, error.limit, error.retry_after)
    return replace(event, error=None), told  # type: ignore[arg-type]
