"""A model's own yes or no as a verifier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from forkdecode.calls.tree import AsyncTree, Node, Tree
from forkdecode.checks import check_unicode, shown
from forkdecode.errors import invalid
from forkdecode.results import ScoredContinuation
from forkdecode.search.branch import Branch

Output: TypeAlias = Literal["probability", "logprob"]
QUESTION = "\nIs this right? Answer yes or no:"


class YesNoScorer:
    """Asks the tree's model: a question is put after the branch, and the score is the probability of yes.

    The branch's KV is shared: only the question and the answers are computed, the question once for both.
    They need positions of the model after the branch; where there are none, asking is refused by name.
    With no=None the score is p(yes | branch, question), otherwise p(yes) / (p(yes) + p(no)) of the two texts;
    output "logprob" returns its logarithm. (A reward of this kind is the generative verifier of Zhang et al.
    2024, "Generative verifiers: reward modeling as next-token prediction", section 3.)
    """

    def __init__(
        self,
        question: str = QUESTION,
        *,
        yes: str = " yes",
        no: str | None = " no",
        output: Output = "probability",
    ) -> None:
        self._question = check_unicode("question", question)
        self._words = _words(yes, no)
        self._output = _check_output(output)

    def verify(self, tree: Tree, branches: Sequence[Branch], nodes: Sequence[Node]) -> list[float]:
        """TreeVerifier.verify."""
        asked: list[Node] = []
        try:
            for node in nodes:  # one may be refused: those before it are pruned, too
                asked.append(tree.extend(node, self._question) if self._question else node)
            scored = tree.score(asked, self._words)
        finally:
            if self._question and asked:
                tree.prune(asked)
        return [_score(answers, self._output) for answers in scored]

    async def verify_async(
        self, tree: AsyncTree, branches: Sequence[Branch], nodes: Sequence[Node]
    ) -> list[float]:
        """TreeVerifier.verify_async."""
        asked: list[Node] = []
        try:
            for node in nodes:
                asked.append(await tree.extend(node, self._question) if self._question else node)
            scored = await tree.score(asked, self._words)
        finally:
            if self._question and asked:
                await tree.prune(asked)
        return [_score(answers, self._output) for answers in scored]


class YesNoJudge:
    """Asks another model: an LLM or a Client (for run), an AsyncLLM or an AsyncClient (for run_async).

    template: the judge's prompt; "{completion}" in it is replaced by the branch's completion. Put what is
    the same for all branches before it, and the judge's prefix cache computes that once. chat: the template
    is a user message, by the judge's chat template. yes, no, output: as for YesNoScorer.
    """

    def __init__(
        self,
        llm: Any,
        template: str,
        *,
        yes: str = " yes",
        no: str | None = " no",
        output: Output = "probability",
        chat: bool = False,
    ) -> None:
        if not callable(getattr(llm, "score", None)):
            raise invalid("llm", f"{shown(llm)} cannot score", "an LLM, a Client or their async kind")
        if "{completion}" not in check_unicode("template", template):
            raise invalid("template", "has no place for the branch", "a text with {completion}")
        self._llm = llm
        self._template = template
        self._words = _words(yes, no)
        self._output = _check_output(output)
        self._chat = chat

    def verify(self, tree: Tree, branches: Sequence[Branch], nodes: Sequence[Node]) -> list[float]:
        """TreeVerifier.verify."""
        results = self._llm.score([self._prompt(b) for b in branches], self._words, chat=self._chat)
        return [_score(result.continuations, self._output) for result in results]

    async def verify_async(
        self, tree: AsyncTree, branches: Sequence[Branch], nodes: Sequence[Node]
    ) -> list[float]:
        """TreeVerifier.verify_async."""
        results = await self._llm.score([self._prompt(b) for b in branches], self._words, chat=self._chat)
        return [_score(result.continuations, self._output) for result in results]

    def _prompt(self, branch: Branch) -> str:
        return self._template.replace("{completion}", branch.completion)


def _words(yes: str, no: str | None) -> tuple[str, ...]:
    words = (yes,) if no is None else (yes, no)
    for name, word in zip(("yes", "no"), words, strict=False):
        if not check_unicode(name, word, "a non-empty text"):
            raise invalid(name, "is empty", "a non-empty text")
    return words


def _check_output(output: object) -> Output:
    if output not in ("probability", "logprob"):
        raise invalid("output", f"{shown(output)} is unknown", "'probability' or 'logprob'")
    return "logprob" if output == "logprob" else "probability"


def _score(answers: Sequence[ScoredContinuation], output: Output) -> float:
    """Of yes, or of yes against no."""
    logprobs = [answer.cumulative_logprob for answer in answers]
    top = max(logprobs)
    total = top + math.log(math.fsum(math.exp(lp - top) for lp in logprobs)) if len(logprobs) > 1 else 0.0
    score = min(0.0, logprobs[0] - total)
    return score if output == "logprob" else math.exp(score)
