"""A streamed beam's tokens as text: what is committed, and the rest of each hypothesis shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forkdecode.results import LiveBeam
from forkdecode.scheduler.events import BeamStep
from forkdecode.text.detokenizer import Detokenizer


@dataclass(frozen=True, slots=True)
class _Shown:
    """A hypothesis of the last update: what has read its tokens, how many those are, and its text from
    character `start` of the whole on."""

    detokenizer: Detokenizer
    tokens: int
    text: str
    start: int


class BeamText:
    """One beam's text. What a step costs follows its new tokens, for a hypothesis goes on from the
    text of the one it continues, and from the committed text where that was not shown."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        """detokenizer: for the request's candidates, a fresh one."""
        self._committed = detokenizer
        self._tokens = 0
        self._characters = 0
        self._shown: dict[int, _Shown] = {}

    def commit(self, token_ids: Sequence[int]) -> str:
        """The text that has become certain with the next committed tokens."""
        text = self._committed.push(token_ids)
        self._tokens += len(token_ids)
        self._characters += len(text)
        return text

    def show(self, step: BeamStep) -> tuple[LiveBeam, ...]:
        """The hypotheses of an update, each with what comes after all that is committed."""
        beams = []
        shown = {}
        for number, parent, ids, score in zip(
            step.hypotheses.tolist(),
            step.parents.tolist(),
            step.token_ids.tolist(),
            step.scores.tolist(),
            strict=True,
        ):
            now = self._continued(self._shown.get(parent), ids)
            beams.append(LiveBeam(number, parent, tuple(ids), now.text, score))
            shown[number] = now
        self._shown = shown
        return tuple(beams)

    def _continued(self, parent: _Shown | None, ids: Sequence[int]) -> _Shown:
        """ids: all after the committed ones, those of `parent` included."""
        if parent is None or parent.tokens < self._tokens:
            parent = _Shown(self._committed, self._tokens, "", self._characters)
        detokenizer = parent.detokenizer.copy()
        more = detokenizer.push(ids[parent.tokens - self._tokens :])
        text = (parent.text + more)[self._characters - parent.start :]
        return _Shown(detokenizer, self._tokens + len(ids), text, self._characters)
