"""Catalogues by name: checked, replaced in place, missed by name."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forkdecode.allowed import AllowedLists
from forkdecode.constraint_types import FromCatalogue
from forkdecode.constraints.catalogue import Catalogue
from forkdecode.constraints.catalogue_build import CatalogueBuilder, build_catalogue
from forkdecode.constraints.catalogue_file import open_catalogue, save_catalogue
from forkdecode.constraints.catalogue_rows import CatalogueConstraint
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.constraints.continued import Continued
from forkdecode.constraints.items import catalogue_digest, check_lengths, item_key, without_short_items
from forkdecode.errors import InvalidRequestError, UnavailableError

OLD, NEW = build_catalogue([(1, 2), (3,)]), build_catalogue([(4,)])


@pytest.fixture
def known() -> Catalogues:
    return Catalogues(10, (8, 9))


def test_names_come_and_go(known: Catalogues) -> None:
    assert known.names() == ()
    known.put_all({"b": OLD, "a": NEW})
    assert known.names() == ("a", "b")
    assert known.get("a") is NEW
    known.put("a", OLD)
    assert known.get("a") is OLD
    known.remove("a")
    for missing in (lambda: known.get("a"), lambda: known.remove("a")):
        with pytest.raises(InvalidRequestError, match="'a' is no catalogue here; allowed: 'b'"):
            missing()
    known.put_all({"n" * 10_000 + str(i): OLD for i in range(100)})
    with pytest.raises(InvalidRequestError, match="and 81 more") as caught:
        known.get("m" * 10_000)
    assert len(str(caught.value)) < 4_000  # a trailer of a call has room for it
    for name in known.names():
        known.remove(name)
    with pytest.raises(InvalidRequestError, match="there are none") as caught:
        known.constraint(FromCatalogue("b"))
    assert caught.value.field == "constraint.name"


@pytest.mark.parametrize(
    ("said", "warned"),
    [
        (None, False),
        ("m", False),
        ("someone/m", False),
        ("./models/m/", False),
        ("m.gguf", False),
        ("n", True),
    ],
)
def test_tokens_of_another_model_are_told_of(
    caplog: pytest.LogCaptureFixture, said: str | None, warned: bool
) -> None:
    builder = CatalogueBuilder()
    builder.add([1, 2])
    Catalogues(10, (8, 9), "m").put("a", builder.build(said))
    assert [f"those of {said!r}; here they go to 'm'" in text for text in caplog.messages] == [True] * warned


WRONG: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "a name that is none": (lambda: 3, OLD, "3 is not a text"),
    "an empty name": (lambda: "", OLD, "empty name"),
    "no catalogue": (lambda: "a", [1, 2], "is none"),
    "a file that is not there": (lambda: "a", "/nowhere/c", "can't be opened"),
    "a file that is none": (lambda: "a", __file__, "does not begin"),
    "tokens of another model": (lambda: "a", build_catalogue([(10,)]), "token 10"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_can_t_be_served_is_refused(what: str, known: Catalogues) -> None:
    name, source, message = WRONG[what]
    with pytest.raises(InvalidRequestError, match=message):
        known.put(name(), source)
    assert known.names() == ()


def test_sources_are_a_mapping(known: Catalogues) -> None:
    with pytest.raises(InvalidRequestError, match="no mapping"):
        known.put_all([("a", OLD)])  # type: ignore[arg-type]


def test_a_damaged_file_is_refused_when_it_is_put(known: Catalogues, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_catalogue(OLD, path)
    raw = bytearray(path.read_bytes())
    at = raw.index(OLD.offsets.tobytes())
    raw[at : at + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(raw)
    open_catalogue(path)
    with pytest.raises(InvalidRequestError, match="offsets"):
        known.put("a", path)


def test_a_replaced_file_is_opened_anew(known: Catalogues, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_catalogue(OLD, path)
    known.put("a", str(path))
    before = known.get("a")
    assert known.get("a") is before
    save_catalogue(NEW, path)
    after = known.get("a")
    assert (before.key([1, 2]), after.key([4])) == ("0", "0")
    assert after.key([1, 2]) is None


def test_a_replacement_that_is_no_good_leaves_the_old_one(
    known: Catalogues, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c"
    save_catalogue(OLD, path)
    known.put("a", path)
    before = known.get("a")
    (tmp_path / "bad").write_bytes(b"not one")
    (tmp_path / "bad").replace(path)
    assert known.get("a") is before
    assert known.get("a") is before
    assert ["too few for a catalogue" in text for text in caplog.messages] == [True]  # said once
    path.unlink()
    assert known.get("a") is before
    save_catalogue(NEW, path)
    assert known.get("a").info == NEW.info


def test_a_file_may_be_there_later(known: Catalogues, tmp_path: Path) -> None:
    path = tmp_path / "c"
    known.expect("a", path)
    assert known.names() == ("a",)
    with pytest.raises(UnavailableError) as caught:
        known.constraint(FromCatalogue("a"))
    assert caught.value.retry_after is not None
    save_catalogue(NEW, path)
    assert known.get("a").info == NEW.info


def test_another_catalogue_than_the_one_asked_for_is_not_served(known: Catalogues, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_catalogue(OLD, path)
    known.put("a", path)
    spec = FromCatalogue("a")
    assert known.constraint(spec, OLD.info.digest).catalogue.info == OLD.info
    with pytest.raises(UnavailableError, match="replaced") as caught:
        known.constraint(spec, NEW.info.digest)
    assert caught.value.retry_after is not None
    save_catalogue(NEW, path)  # which is noticed when it is asked for
    assert known.constraint(spec, NEW.info.digest).catalogue.info == NEW.info


def test_an_item_that_begins_another_must_be_ended_by_eos(known: Catalogues) -> None:
    known.put("a", build_catalogue([(5, 1, 2), (5,), (7,)], ["long", "short", "other"]))
    assert known.constraint(FromCatalogue("a")).end == "eos"
    with pytest.raises(InvalidRequestError, match="'short' is the beginning of item 'long'") as caught:
        known.constraint(FromCatalogue("a", end="item"))
    assert caught.value.field == "constraint.end"
    with pytest.raises(ValueError, match="beginning"):
        OLD.nested_keys()


def test_items_that_hold_eos_ids_must_end_by_themselves(known: Catalogues) -> None:
    known.put("a", build_catalogue([(5, 9)]))
    assert known.constraint(FromCatalogue("a", end="item")).end == "item"
    with pytest.raises(InvalidRequestError, match="EOS id 9") as caught:
        known.constraint(FromCatalogue("a"))
    assert caught.value.field == "constraint.end"


def test_threads_that_meet_at_a_replaced_file_agree(known: Catalogues, tmp_path: Path) -> None:
    path = tmp_path / "c"
    save_catalogue(OLD, path)
    known.put("a", path)
    save_catalogue(NEW, path)
    start, found = threading.Barrier(8), list[Catalogue]()

    def look() -> None:
        start.wait()
        found.append(known.get("a"))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({id(catalogue) for catalogue in found}) == 1
    assert found[0].info == NEW.info


def _constraint(catalogue: Catalogue, *, by_item: bool = False) -> CatalogueConstraint:
    return CatalogueConstraint(catalogue, "item" if by_item else "eos", np.array([8, 9]))


def test_items_that_began_in_the_prompt_have_their_key() -> None:
    constraint = _constraint(OLD)
    begun = Continued(constraint, np.array([1]))
    assert item_key(constraint, (1, 2, 9)) == item_key(begun, (2, 9)) == item_key(begun, (2,)) == "0"
    assert item_key(begun, (9,)) is item_key(None, (1, 2)) is None
    assert item_key(_constraint(OLD, by_item=True), (3,)) == "1"
    assert catalogue_digest(begun) == catalogue_digest(constraint) == OLD.info.digest
    assert catalogue_digest(None) is None


def test_short_items_are_counted_from_where_the_constraint_began() -> None:
    constraint = _constraint(build_catalogue([(1, 2), (3, 4, 5), (3, 4, 5, 6)]))
    assert without_short_items(constraint, 2) is constraint
    long = without_short_items(constraint, 3)
    assert isinstance(long, CatalogueConstraint)
    assert long.least == 3
    begun = Continued(constraint, np.array([3, 4]))
    assert without_short_items(begun, 0) is begun
    allowed = without_short_items(begun, 2).rows().allowed().get()
    assert isinstance(allowed, AllowedLists)
    assert allowed.tokens.tolist() == [5]
    none = without_short_items(begun, 3).rows().allowed().get()
    assert isinstance(none, AllowedLists)
    assert none.tokens.tolist() == []


def test_lengths_that_fit_no_item_are_refused() -> None:
    catalogue = build_catalogue([(1, 2), (3, 4, 5)])
    eos, item = _constraint(catalogue), _constraint(catalogue, by_item=True)
    for constraint, low, high in ((eos, 0, 3), (eos, 3, 4), (item, 0, 2), (item, 3, 9)):
        check_lengths(constraint, low, high)
    with pytest.raises(InvalidRequestError, match="max_tokens: 2 is below the 3 tokens of the shortest"):
        check_lengths(eos, 0, 2)
    with pytest.raises(InvalidRequestError, match="max_tokens: 1 is below the 2 tokens of the shortest"):
        check_lengths(item, 0, 1)
    with pytest.raises(InvalidRequestError, match="min_tokens: 4 is above the 3 tokens of the longest"):
        check_lengths(eos, 4, 9)
    with pytest.raises(InvalidRequestError, match="min_tokens: 4 is above the 3 tokens of the longest"):
        check_lengths(item, 4, 9)
