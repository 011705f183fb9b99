"""Several steps' events made one message, without losing a token."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from forkdecode.results import (
    BeamUpdate,
    CandidateFinished,
    Committed,
    Delta,
    Event,
    Finished,
    LiveBeam,
    Started,
    TokenLogprob,
)


class _Stream:
    """The new tokens and text of one candidate, or of what a beam has committed."""

    __slots__ = ("logprobs", "text", "token_ids")

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, token_ids: Iterable[int], text: str, logprobs: Iterable[TokenLogprob] = ()) -> None:
        self.token_ids.extend(token_ids)
        self.text.append(text)
        self.logprobs.extend(logprobs)


class Coalescer:
    """What has happened to one request since it was last asked. Not thread-safe.

    Events come out in the order in which DecodeEvent holds them. Of one candidate, tokens come before
    its end; an update of a beam comes after all that had been committed, in terms of it. Only the
    newest update is kept; its parents are those that the last update taken showed.
    """

    def __init__(self) -> None:
        self._started: Started | None = None
        self._deltas: dict[int, _Stream] = {}
        self._ended: list[CandidateFinished] = []
        self._committed: _Stream | None = None
        self._update: BeamUpdate | None = None
        self._finished: Finished | None = None
        self._request_id = ""
        self._origin: dict[int, int] = {}
        """For each hypothesis of the engine's last update, the one of the last update taken that it
        continues, or 0."""

    def __bool__(self) -> bool:
        """Whether anything waits."""
        parts = (self._started, self._committed, self._update, self._finished)
        return bool(self._deltas or self._ended) or any(part is not None for part in parts)

    @property
    def tokens(self) -> int:
        """How many tokens wait: a measure of the memory that it takes, which does not grow with the
        number of events but with theirs."""
        streams = [*self._deltas.values(), *([self._committed] if self._committed else [])]
        beams = self._update.beams if self._update is not None else ()
        return sum(len(stream.token_ids) for stream in streams) + sum(len(beam.token_ids) for beam in beams)

    def add(self, events: Iterable[Event]) -> None:
        """Takes what came next."""
        for event in events:
            self._request_id = event.request_id
            match event:
                case Delta():
                    stream = self._deltas.setdefault(event.candidate, _Stream())
                    stream.add(event.token_ids, event.text, event.logprobs or ())
                case CandidateFinished():
                    self._ended.append(event)
                case Committed():
                    self._commit(event)
                case BeamUpdate():
                    self._show(event)
                case Started():
                    self._started = event
                case Finished():
                    self._finished = event

    def take(self) -> list[Event]:
        """All that waits, of each candidate and kind one event at most; then nothing waits."""
        events: list[Event] = [] if self._started is None else [self._started]
        for candidate, stream in self._deltas.items():
            events.append(
                Delta(
                    self._request_id,
                    candidate,
                    tuple(stream.token_ids),
                    "".join(stream.text),
                    tuple(stream.logprobs) or None,
                )
            )
        events.extend(self._ended)
        if self._committed is not None:
            tokens, text = tuple(self._committed.token_ids), "".join(self._committed.text)
            events.append(Committed(self._request_id, tokens, text))
        if self._update is not None:
            events.append(self._update)
            self._origin = {beam.hypothesis_id: beam.hypothesis_id for beam in self._update.beams}
        if self._finished is not None:
            events.append(self._finished)
        self._started = self._committed = self._update = self._finished = None
        self._deltas, self._ended = {}, []
        return events

    def _commit(self, event: Committed) -> None:
        if self._committed is None:
            self._committed = _Stream()
        self._committed.add(event.token_ids, event.text)
        if self._update is not None:
            beams = tuple(beam for old in self._update.beams for beam in _after(old, event))
            is_stale = bool(self._update.beams) and not beams
            self._update = None if is_stale else replace(self._update, beams=beams)

    def _show(self, event: BeamUpdate) -> None:
        beams = tuple(replace(beam, parent_id=self._origin.get(beam.parent_id, 0)) for beam in event.beams)
        self._origin = {beam.hypothesis_id: beam.parent_id for beam in beams}
        self._update = replace(event, beams=beams)


def _after(beam: LiveBeam, committed: Committed) -> list[LiveBeam]:
    """An older update's beam in terms of what has been committed since; none when it has died or is
    wholly committed: it is provisional, and a newer update will come."""
    count = len(committed.token_ids)
    alive = beam.token_ids[:count] == committed.token_ids and beam.text.startswith(committed.text)
    if not alive:
        return []
    text = beam.text[len(committed.text) :]
    return [replace(beam, token_ids=beam.token_ids[count:], text=text)]
