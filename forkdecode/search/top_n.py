"""Exhaustive top-N on a tree session, without input or output: what is to be done is yielded."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from forkdecode.calls.arguments import check_options
from forkdecode.calls.tree import Node
from forkdecode.checks import check_int
from forkdecode.errors import NoLegalTokenError, invalid
from forkdecode.results import FinishReason, TokenLogprob
from forkdecode.search.arguments import check_budget, check_root
from forkdecode.search.best_first import Complete, Look, Seen, Tokens, TopN
from forkdecode.search.budget import Budget, Limit, Spent, exhausted
from forkdecode.types import MAX_BAD_WORDS, Options

MAX_CHILDREN = 1024
_MASKS = ("constraint", "allowed_token_ids", "bad_words", "no_repeat_ngram_size", "min_tokens")
_KEPT = (*_MASKS, "max_tokens", "stop_token_ids", "ignore_eos", "priority")
_DUST = 1e-6
"""Probability that float32 sums can't tell from none."""


Ending: TypeAlias = Literal["done", "children"] | Limit
"""done: exact. children: a prefix has more continuations than can be asked for. Else the budget's bound."""


@dataclass(frozen=True, slots=True)
class TopItem:
    """A complete sequence below the root. score: the sum of its tokens' log-probabilities, like a beam's
    selection_logprob: log_softmax over the whole vocabulary, masked and not renormalised. item: the key of
    the catalogue item that it has completed, if there is a catalogue."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    score: float
    item: str | None = None


@dataclass(frozen=True, slots=True)
class TopNResult:
    """items: the most likely complete sequences, best first, all of them certain. exact: there are as many as
    requested, or all there are. Otherwise a limit ended the search (`ended`), and `others` are further
    complete sequences that were found, best first. bound: no sequence apart from `items` is more likely, in
    natural logs."""

    items: tuple[TopItem, ...]
    exact: bool
    others: tuple[TopItem, ...]
    bound: float
    ended: Ending
    spent: Spent


@dataclass(frozen=True, slots=True)
class Ask:
    """Decode one child of a node."""

    node: Node
    options: Options


@dataclass(frozen=True, slots=True)
class AskAll:
    """All at once; the answer: a node for each. timeout: seconds after which they are stopped."""

    asks: tuple[Ask, ...]
    timeout: float | None


@dataclass(frozen=True, slots=True)
class Keep:
    """The answer: a node of the first `length` tokens of the node's path."""

    node: Node
    length: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Prune these alone; no answer."""

    nodes: tuple[Node, ...]


Operation: TypeAlias = AskAll | Keep | Leave
Steps: TypeAlias = Generator[Operation, Any, TopNResult]


class TopNSearch:
    """Yields what is to be done on the tree. A prefix is looked at by a decode of its parent's node that
    is made to begin with its last token and picks one more: the first tells whether the sequence is complete
    by then, the second what can follow."""

    def __init__(
        self,
        n: int,
        root: Node,
        options: Options | None,
        batch: int,
        children: int,
        budget: Budget | None,
        max_positions: int | None = None,
    ) -> None:
        check_root(root)
        self._options = _check_options(Options() if options is None else check_options(options))
        longest = self._options.max_tokens
        if max_positions is not None:  # a root without room is refused by the tree
            longest = max(1, min(longest, max_positions - root.num_tokens))
        self._policy = TopN(n, max_tokens=longest, batch=batch)
        self._root = root
        self._children = check_int("children", children, 1, MAX_CHILDREN)
        self._budget = check_budget(budget)
        self._began = time.monotonic()
        self._spent = Spent()
        self._nodes: dict[Tokens, Node] = {(): root}
        self._found: dict[Tokens, tuple[str, str | None]] = {}
        """Text and item of complete sequences."""
        self._ended: Ending | None = None

    @property
    def held(self) -> tuple[Node, ...]:
        """The nodes of prefixes, which it made and did not prune."""
        return tuple(node for tokens, node in self._nodes.items() if tokens and not node.is_pruned)

    def steps(self) -> Steps:
        """Returns the result."""
        while self._ended is None:
            self._clock()
            limit = exhausted(self._budget, self._spent)
            looks = self._policy.ask(0 if limit else self._room())
            if not looks:
                self._ended = "done" if self._policy.exact else limit or self._short_of()
            elif self._is_beyond(looks[0]):
                self._ended = "children"
                self._policy.tell([None] * len(looks))
            else:
                yield from self._round(looks)
        self._clock()
        return self._result()

    def _round(self, looks: Sequence[Look]) -> Generator[Operation, Any, None]:
        asked = [look for look in looks if not self._is_beyond(look)]
        asks = tuple(Ask(self._nodes[look.after], self._asking(look)) for look in asked)
        timeout = None
        if self._budget.seconds is not None:
            timeout = max(0.0, self._budget.seconds - self._spent.seconds)
        nodes: list[Node] = yield AskAll(asks, timeout)
        found: dict[Look, Seen | None] = {}
        for look, node in zip(asked, nodes, strict=True):
            found[look] = _seen(look, node, self._children)
            self._count(node)
            if look.token is not None:
                yield from self._remember(look, node, found[look])
        yield Leave(tuple(nodes))
        self._policy.tell([found.get(look) for look in looks])

    def _is_beyond(self, look: Look) -> bool:
        """Whether too many children of the prefix are known to leave them all out of an answer."""
        return len(look.skip) + len(self._options.bad_words) > MAX_BAD_WORDS

    def _remember(self, look: Look, node: Node, seen: Seen | None) -> Generator[Operation, Any, None]:
        if seen is None:
            return
        if seen.ended is not None:
            self._found[look.tokens] = node.path_text[len(self._root.path_text) :], node.item
        elif seen.children:
            length = self._root.num_tokens + len(look.tokens)
            self._nodes[look.tokens] = yield Keep(node, length)

    def _asking(self, look: Look) -> Options:
        options, before = self._options, len(look.after)
        tokens = 1 if look.token is None or look.last else 2
        return replace(
            options,
            max_tokens=tokens,
            min_tokens=min(max(0, options.min_tokens - before), tokens),
            forced_prefix=() if look.token is None else (look.token,),
            bad_words=options.bad_words + tuple((token,) for token in look.skip),
            logprobs=self._children,
        )

    def _room(self) -> int:
        """How many looks are sure to fit the budget: each takes a node and up to two tokens."""
        tokens, nodes = self._budget.tokens, self._budget.nodes
        room = [math.inf if nodes is None else nodes - self._spent.nodes]
        room.append(math.inf if tokens is None else (tokens - self._spent.tokens) // 2)
        return int(min(*room, 1 << 16))

    def _short_of(self) -> Limit:
        """The limit that leaves no room for another look."""
        nodes = self._budget.nodes
        return "nodes" if nodes is not None and nodes <= self._spent.nodes else "tokens"

    def _count(self, node: Node) -> None:
        spent = self._spent
        self._spent = replace(spent, tokens=spent.tokens + len(node.token_ids), nodes=spent.nodes + 1)

    def _clock(self) -> None:
        self._spent = replace(self._spent, seconds=time.monotonic() - self._began)

    def _result(self) -> TopNResult:
        policy = self._policy
        assert self._ended is not None, "it has ended"
        items, others = map(self._items, (policy.certain, policy.pending))
        return TopNResult(items, policy.exact, others, policy.bound, self._ended, self._spent)

    def _items(self, found: Sequence[Complete]) -> tuple[TopItem, ...]:
        return tuple(self._item(complete) for complete in found)

    def _item(self, complete: Complete) -> TopItem:
        text, item = self._found[complete.token_ids]
        return TopItem(complete.token_ids, text, complete.finish_reason, complete.score, item)


def _seen(look: Look, node: Node, asked: int) -> Seen | None:
    """None for a node that was stopped before it told what was wanted."""
    if isinstance(node.error, NoLegalTokenError):
        return Seen()
    if node.error is not None:
        raise node.error
    logprobs = node.logprobs or ()
    forced = 0 if look.token is None else 1
    if forced and len(logprobs) == 1 and node.finish_reason in ("eos", "stop"):
        return Seen(ended=node.finish_reason)
    if look.last:
        return Seen() if logprobs else None
    return _children(logprobs[forced], asked) if len(logprobs) > forced else None


def _children(step: TokenLogprob, asked: int) -> Seen:
    # What is drawn from is renormalised over what the masks leave: all of it is off by the same.
    off = step.logprob - step.selection_logprob
    left = 1.0 - math.fsum(math.exp(logprob) for _, logprob in step.top_processed)
    rest = -math.inf
    if len(step.top_processed) == asked:
        least = step.top_processed[-1][1]
        rest = off + min(least, math.log(max(left, 0.0) + _DUST))
    return Seen(children=tuple((t, off + logprob) for t, logprob in step.top_processed), rest=rest)


def _check_options(options: Options) -> Options:
    default = Options()
    for name in Options.__dataclass_fields__:
        if name not in _KEPT and getattr(options, name) != getattr(default, name):
            problem = "can't be held to by an exhaustive search"
            raise invalid(name, problem, f"its default here; what counts is {', '.join(_KEPT)}")
    return options
