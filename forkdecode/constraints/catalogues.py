"""Catalogues by name, for one model: checked when put, replaced while requests run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from forkdecode.checks import check_unicode, shown
from forkdecode.constraint_types import FromCatalogue
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogue_file import open_catalogue
from forkdecode.constraints.catalogue_rows import CatalogueConstraint
from forkdecode.errors import InvalidRequestError, UnavailableError, invalid
from forkdecode.file_stamp import FileStamp, file_stamp
from forkdecode.logs import get_logger

Source: TypeAlias = Catalogue | str | os.PathLike[str]
"""A catalogue, or the file of one, which is opened anew whenever another has taken its place."""
RETRY_AFTER = 1.0
"""Seconds after which a request may be sent again that met its catalogue being replaced."""
MAX_NAMED = 20
"""Names that an error lists."""
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """catalogue None: its file could not be opened yet. stamp: of the file that was looked at last, whether
    it could be opened or not. eos: those of the model's EOS ids that stand in items."""

    catalogue: Catalogue | None
    eos: tuple[int, ...] = ()
    path: Path | None = None
    stamp: FileStamp | None = None


class Catalogues:
    """The catalogues that FromCatalogue can name, for one model of `vocab_size` tokens. Safe to use from
    several threads.

    Putting a catalogue under a name in use replaces it for requests made from then on; running requests keep
    theirs as long as they need it. The same holds for a file that another one is renamed over: the change is
    noticed when the next request names it. If the new file cannot be used, the old catalogue stays in place.
    model: its name; the log tells of catalogues that say that their tokens are another one's.
    """

    def __init__(self, vocab_size: int, eos_ids: Sequence[int], model: str | None = None) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._eos_ids = tuple(eos_ids)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._entries: dict[str, _Entry] = {}

    def put(self, name: str, source: Source) -> None:
        """Takes a catalogue, or opens and reads through its file: two seconds for 10,000,000 items. Raises
        InvalidRequestError if it is damaged, or not made of this model's tokens."""
        _check_name(name)
        entry = self._opened(source)
        with self._lock:
            self._entries[name] = entry

    def put_all(self, sources: Mapping[str, Source]) -> None:
        """put() of each. Raises InvalidRequestError naming the one at fault."""
        if not isinstance(sources, Mapping):
            raise invalid("catalogues", f"{shown(sources)} is no mapping", "{name: catalogue or file}")
        for name, source in sources.items():
            self.put(name, source)

    def expect(self, name: str, path: Path) -> None:
        """put() of a file that may not be there yet, or be damaged: requests are refused until it can be
        had."""
        try:
            self.put(name, path)
        except InvalidRequestError as error:
            _log.warning(f"catalogue {name!r}: {error}")
            with self._lock:
                self._entries[name] = _Entry(None, path=path)

    def remove(self, name: str) -> None:
        """Removes a name; running requests are not affected. Raises InvalidRequestError for an unknown
        name."""
        with self._lock:
            if self._entries.pop(name, None) is None:
                raise _missing("name", name, self._entries)

    def names(self) -> tuple[str, ...]:
        """All names, in order."""
        with self._lock:
            return tuple(sorted(self._entries))

    def get(self, name: str) -> Catalogue:
        """The catalogue of that name as it is now. Raises InvalidRequestError where there is none,
        UnavailableError where its file can't be had yet."""
        return self._current("name", name)[0]

    def is_current(self, name: str) -> bool:
        """Whether get() finds it, or that there is none, without looking into a file."""
        with self._lock:
            entry = self._entries.get(name)
        return entry is None or entry.path is None or file_stamp(entry.path) == entry.stamp

    def constraint(self, spec: FromCatalogue, digest: str | None = None) -> CatalogueConstraint:
        """What `spec` names. digest: of the catalogue that it has to be, however it may have been replaced.

        Raises InvalidRequestError naming a part of "constraint", UnavailableError where it is another one.
        """
        catalogue, eos = self._current("constraint.name", spec.name)
        if digest is not None and catalogue.info.digest != digest:
            raise UnavailableError(
                f"catalogue {spec.name!r} is being replaced", field="constraint.name", retry_after=RETRY_AFTER
            )
        if spec.end == "eos" and eos:
            problem = f"EOS id {eos[0]} stands in an item of catalogue {spec.name!r}"
            raise invalid("constraint.end", problem, "'item' for this catalogue")
        if spec.end == "item" and catalogue.info.prefixes:
            short, long = catalogue.nested_keys()
            problem = f"of catalogue {spec.name!r}, item {short!r} is the beginning of item {long!r}"
            raise invalid("constraint.end", problem, "'eos' for this catalogue")
        return CatalogueConstraint(catalogue, spec.end, np.array(self._eos_ids, np.int64))

    def _current(self, field: str, name: str) -> tuple[Catalogue, tuple[int, ...]]:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                raise _missing(field, name, self._entries)
        if entry.path is not None and file_stamp(entry.path) != entry.stamp:
            entry = self._reopened(name)
        if entry.catalogue is None:
            problem = f"the file of catalogue {name!r} can't be used now"
            raise UnavailableError(problem, field=field, retry_after=RETRY_AFTER)
        return entry.catalogue, entry.eos

    def _reopened(self, name: str) -> _Entry:
        """The entry after a look at its file; one thread looks for all."""
        with self._opening:
            with self._lock:
                entry = self._entries.get(name)
                if entry is None:
                    raise _missing("constraint.name", name, self._entries)
            if entry.path is None or (stamp := file_stamp(entry.path)) == entry.stamp:
                return entry
            try:
                fresh = self._opened(entry.path)
                _log.info(f"catalogue {name!r} is replaced: {fresh.catalogue}")
            except InvalidRequestError as error:
                _log.warning(f"catalogue {name!r}: {error}")
                fresh = replace(entry, stamp=stamp)
            with self._lock:
                if self._entries.get(name) is entry:
                    self._entries[name] = fresh
            return fresh

    def _opened(self, source: Source) -> _Entry:
        """Raises InvalidRequestError."""
        if isinstance(source, Catalogue):
            catalogue, path, stamp = source, None, None
        elif isinstance(source, (str, os.PathLike)):
            path = Path(source)
            stamp = file_stamp(path)  # before it is opened: a later file has another one
            catalogue = open_catalogue(path)
        else:
            raise invalid("catalogues", f"{shown(source)} is none", "a Catalogue, or the path of its file")
        catalogue.check()
        if catalogue.info.highest >= self._vocab_size:
            problem = f"token {catalogue.info.highest} of {path or catalogue} is none of the model's"
            raise invalid("catalogues", problem, f"token ids from 0 to {self._vocab_size - 1}")
        said = catalogue.info.model
        if said and self._model and _short(said) != _short(self._model):
            _log.warning(
                f"{path or catalogue}: its tokens are those of {said!r}; here they go to {self._model!r}"
            )
        return _Entry(catalogue, tuple(catalogue.holds_any(self._eos_ids)), path, stamp)


def _short(model: str) -> str:
    """The same for a model's name, hub id, folder and file."""
    return Path(model).name.removesuffix(".gguf")


def _check_name(name: object) -> None:
    if not check_unicode("catalogues", name, "a non-empty text for a name"):
        raise invalid("catalogues", "has an empty name", "a non-empty text for a name")


def _missing(field: str, name: str, known: Mapping[str, _Entry]) -> InvalidRequestError:
    names = sorted(known)
    there = ", ".join(map(shown, names[:MAX_NAMED])) or "there are none"
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return invalid(field, f"{shown(name)} is no catalogue here", there + more)
