"""A search without input or output: what it wants done is yielded, what came of it is sent back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from forkdecode.calls.tree import Node
from forkdecode.checks import MAX_INT, check_bool
from forkdecode.errors import invalid
from forkdecode.search.arguments import check_budget, check_decoding, check_policy, check_root
from forkdecode.search.branch import Branch, BranchState
from forkdecode.search.budget import Budget, Part, Spent, Wanted, exhausted, fit
from forkdecode.search.decoding import Decoding
from forkdecode.search.operations import Decode, Doing, Drop, Give, Measure, Start, Verify
from forkdecode.search.result import Ending, SearchResult
from forkdecode.search.verifiers import Verifier, check_verifier
from forkdecode.search.work import Expand, Expanded, How, Policy, Work


class Search:
    """One search, of what run() takes. Whoever drives steps() does what it yields, and closes it.
    max_positions: tokens that a path can have with the tree's model."""

    def __init__(
        self,
        policy: Policy,
        root: Node,
        verifier: Verifier | None,
        *,
        budget: Budget | None = None,
        decoding: Decoding | None = None,
        prune: bool = True,
        max_positions: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_policy(policy)
        check_verifier(verifier)
        check_root(root)
        if root.is_generating or root.is_finished:
            raise invalid("root", f"is {root.state}", "a node that can be decoded on")
        self._positions = MAX_INT if max_positions is None else max_positions
        if root.num_tokens >= self._positions:
            problem = f"has a path of {root.num_tokens} tokens"
            raise invalid("root", problem, f"at most {self._positions - 1} with this model")
        self._root = root
        self._policy = policy
        self._verifies = verifier is not None
        self._budget = check_budget(budget)
        self._decoding = check_decoding(decoding)
        self._prune = check_bool("prune", prune)
        self._clock = clock
        self._began = clock()
        self._spent = Spent()
        self._nodes = {root.id: root}
        self._given: dict[tuple[int, str], Node] = {}
        self._lengths: dict[str, int | None] = {}
        self._dead: set[tuple[int, str]] = set()
        self._short = False
        self._branches = {root.id: Branch(root.id, None, 0, "open")}
        self._leaves: dict[int, Branch] = {}
        policy.begin(self._branches[root.id])

    @property
    def given(self) -> tuple[Node, ...]:
        """The nodes of given texts that are still in the tree; whoever drives it drops them at the end."""
        return tuple(node for node in self._given.values() if not node.is_pruned)

    def steps(self) -> Doing[SearchResult]:
        """Yields operations; returns the result."""
        ending: Ending | None = None
        while ending is None:
            self._look_at_the_clock()
            ending = exhausted(self._budget, self._spent) or (yield from self._round())
        return self._result(ending)

    def _round(self) -> Doing[Ending | None]:
        """One ask and tell."""
        work = self._policy.ask()
        if work.prune:
            yield from self._drop(work.prune)
        if not work.expand:
            return "policy"
        results = yield from self._expand(work)
        self._policy.tell(results)
        return "tokens" if self._short else None

    def _expand(self, work: Work) -> Doing[list[Expanded]]:
        """Within the budget, in as many rounds as it takes to be sure of that."""
        wanted: list[Wanted] = []
        for expand in work.expand:
            wanted.append((yield from self._wanted(expand)))
        made: list[list[Branch]] = [[] for _ in wanted]
        while exhausted(self._budget, self._spent) is None:
            parts = fit(wanted, self._budget, self._spent)
            if not parts:
                # What is left of the budget is less than a forced prefix: asking again would change nothing.
                self._short = any(want.left for want in wanted) and not any(made)
                break
            starts: list[Start] = []
            for part in parts:
                node = yield from self._source(wanted[part.index].expand)
                starts.append(self._start(node, wanted[part.index].expand, part))
            decoded = yield Decode(tuple(starts), self._seconds_left())
            for part, nodes in zip(parts, decoded, strict=True):
                want = wanted[part.index]
                begun = yield from self._begun(nodes, want)
                made[part.index] += [self._branch(node, want.expand) for node in begun]
            self._look_at_the_clock()
        yield from self._verify(work.expand, made)
        for branches in made:
            self._keep(branches)
        return [Expanded(e, tuple(m), _key(e) in self._dead) for e, m in zip(work.expand, made, strict=True)]

    def _begun(self, nodes: Sequence[Node], want: Wanted) -> Doing[list[Node]]:
        """Those that nothing was legal for from the first token on are no branches: they are dropped, and
        what was expanded is not expanded like that again. Raises what ended them where it is the root: then
        there is nothing to be found."""
        dead = tuple(node for node in nodes if node.error is not None and not node.token_ids)
        if dead:
            branch = self._branches[want.expand.node]
            yield Drop(dead, subtree=False)
            if branch.parent is None:
                assert dead[0].error is not None, "that is what they are"
                raise dead[0].error
            want.left = 0
            self._dead.add(_key(want.expand))
            if not want.expand.how.after and branch.state == "open":
                cut = self._branches[branch.id] = replace(branch, state="cut")
                if branch.id in self._leaves:
                    self._leaves[branch.id] = cut
        return [node for node in nodes if node not in dead]

    def _wanted(self, expand: Expand) -> Doing[Wanted]:
        branch, how = self._branches.get(expand.node), expand.how
        if branch is None:
            raise invalid("policy", f"expands {expand.node}, which is unknown or pruned", "known branches")
        if branch.is_finished and not how.after:
            raise invalid(
                "policy", f"expands {expand.node}, which is finished", "open branches, or How(after=)"
            )
        longest = self._decoding.longest(branch.path_tokens, whole=how.whole)
        longest = yield from self._positioned(longest, self._nodes[expand.node], how.after)
        least = (yield from self._least()) if _begins(branch, how) else 1
        if longest < least and branch.parent is None and not how.after:
            raise invalid("forced_prefix", f"has {least} tokens", f"at most {longest} for this search")
        has_room = longest >= least and _key(expand) not in self._dead
        return Wanted(expand, longest, expand.n if has_room else 0, least)

    def _positioned(self, tokens: int, node: Node, after: str) -> Doing[int]:
        """How many of so many tokens the model has positions for after a node and a text."""
        room = self._positions - node.num_tokens
        if after and room < tokens + len(after.encode()):  # no token is less than a byte
            length = yield from self._length(after)
            room = 0 if length is None else room - length
        return max(0, min(tokens, room))

    def _least(self) -> Doing[int]:
        """The fewest tokens that a child can have which begins an answer."""
        prefix = self._decoding.options.forced_prefix
        if isinstance(prefix, str) and prefix:
            return (yield from self._length(prefix)) or 1
        return max(1, len(prefix))

    def _length(self, text: str) -> Doing[int | None]:
        """A text's tokens by itself; None where not even the root has room for them."""
        if text not in self._lengths:
            self._lengths[text] = yield Measure(self._root, text)
        return self._lengths[text]

    def _source(self, expand: Expand) -> Doing[Node]:
        """What is decoded. A text is given to a branch once: draws that follow it differ by its node's
        seeds, as those from any one node do."""
        node, after = self._nodes[expand.node], expand.how.after
        if not after:
            return node
        key = _key(expand)
        if key not in self._given:
            self._given[key] = yield Give(node, after)
        return self._given[key]

    def _start(self, node: Node, expand: Expand, part: Part) -> Start:
        how, decoding = expand.how, self._decoding
        sample = replace(how.sample or decoding.sample, n=part.n)
        step = () if how.whole else decoding.step
        begins = _begins(self._branches[expand.node], how)
        return Start(node, sample, step, decoding.limited(part.tokens, begins=begins))

    def _branch(self, node: Node, expand: Expand) -> Branch:
        parent, after = self._branches[expand.node], expand.how.after
        tokens = node.token_ids
        path_tokens = parent.path_tokens + len(tokens)
        branch = Branch(
            id=node.id,
            parent=parent.id,
            depth=parent.depth + 1,
            state=self._state(node, path_tokens),
            text=node.text,
            completion=node.text if after else parent.completion + node.text,
            transcript=parent.transcript + after + node.text,
            token_ids=tokens,
            path_tokens=path_tokens,
            logprob=node.cumulative_logprob,
            path_logprob=parent.path_logprob + node.cumulative_logprob,
            finish_reason=node.finish_reason,
            scores=parent.scores,
            item=node.item,
        )
        self._nodes[node.id] = node
        spent = self._spent
        self._spent = replace(spent, tokens=spent.tokens + len(tokens), nodes=spent.nodes + 1)
        return branch

    def _verify(self, expand: Sequence[Expand], made: list[list[Branch]]) -> Doing[None]:
        """Replaces the branches that are to be scored."""
        places = [
            (i, j)
            for i, branches in enumerate(made)
            for j, branch in enumerate(branches)
            if expand[i].score == "all" or (expand[i].score == "finished" and branch.is_finished)
        ]
        if not places:
            return
        if not self._verifies:
            raise invalid("verifier", "is missing, and the policy wants scores", "a verifier")
        branches = tuple(made[i][j] for i, j in places)
        scores = yield Verify(branches, tuple(self._nodes[branch.id] for branch in branches))
        for (i, j), branch, score in zip(places, branches, scores, strict=True):
            made[i][j] = replace(branch, scores=(*branch.scores, score), is_scored=True)
        self._spent = replace(self._spent, scored=self._spent.scored + len(places))

    def _keep(self, branches: Sequence[Branch]) -> None:
        for branch in branches:
            self._branches[branch.id] = self._leaves[branch.id] = branch
            assert branch.parent is not None, "only the root has none"
            self._leaves.pop(branch.parent, None)

    def _drop(self, numbers: Sequence[int]) -> Doing[None]:
        chosen = self._branches.keys() & set(numbers)
        gone: dict[int, Branch] = {}
        for branch in self._branches.values():  # parents come first
            if branch.id in chosen or branch.parent in gone:
                gone[branch.id] = branch
        tops = tuple(self._nodes[b.id] for b in gone.values() if b.parent not in gone)
        for number in gone:
            del self._branches[number], self._nodes[number]
            self._leaves.pop(number, None)
        if tops and self._prune:
            yield Drop(tops, subtree=True)

    def _result(self, ending: Ending) -> SearchResult:
        finished = tuple(self._policy.ranked())
        for branch in finished:
            if not branch.is_finished:
                raise invalid("policy", f"ranks branch {branch.id}, which is {branch.state}", "finished ones")
        unfinished = tuple(branch for branch in self._leaves.values() if not branch.is_finished)
        return SearchResult(finished, unfinished, self._spent, ending)

    def _state(self, node: Node, path_tokens: int) -> BranchState:
        if node.finish_reason in ("eos", "stop"):
            return "finished"
        is_full = path_tokens >= self._decoding.max_tokens or node.num_tokens >= self._positions
        return "cut" if is_full or node.finish_reason == "failed" else "open"

    def _look_at_the_clock(self) -> None:
        self._spent = replace(self._spent, seconds=self._clock() - self._began)

    def _seconds_left(self) -> float | None:
        seconds = self._budget.seconds
        return None if seconds is None else max(0.0, seconds - self._spent.seconds)


def _key(expand: Expand) -> tuple[int, str]:
    """What is decoded: a branch, and the text that is given first."""
    return expand.node, expand.how.after


def _begins(branch: Branch, how: How) -> bool:
    """Whether an answer begins with what follows."""
    return branch.parent is None or bool(how.after)
