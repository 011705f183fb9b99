"""An engine process opens the catalogues that its front end knows: the same ones, or it says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkdecode.constraint_types import FromCatalogue
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import save_catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.remote import EngineProcess
from forkdecode.errors import UnavailableError
from forkdecode.requests.prepare import Prepared, RequestMaker
from forkdecode.results import Candidate, Finished
from forkdecode.types import Beam, Sample
from tests.engine.engine_process import Client, States, started
from tests.tiny_model import save_tiny_llama

OLD = build_catalogue([(1, 2), (1, 3), (4,)], ["old a", "old b", "old c"])
NEW = build_catalogue([(9, 9), (8,)], ["new a", "new b"])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalogue") / "c"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Iterator[EngineProcess]:
    save_catalogue(OLD, path)
    folder = save_tiny_llama(tmp_path_factory.mktemp("model"))
    with started(folder, catalogues={"items": path}) as engine:
        yield engine


def _maker(engine: EngineProcess, source: Any) -> RequestMaker:
    known = Catalogues(engine.info.vocab_size, engine.info.eos_ids)
    known.put("items", source)
    return RequestMaker(engine.load_tokenizer(), engine.info, known)


def _prepared(maker: RequestMaker, end: Any = "eos", strategy: Any = None, **options: Any) -> Prepared:
    constraint = FromCatalogue("items", end=end)
    given = {"max_tokens": 4, "constraint": constraint, **options}
    asked = strategy or Beam(width=5)
    return maker.prepare("hello", asked, None, given, chat=False, request_id=None)


def _decoded(engine: EngineProcess, prepared: Prepared) -> tuple[Candidate, ...]:
    client = Client(engine)
    client.send(prepared)
    last = prepared.assembler.events(client.last(prepared.request.request_id))[-1]
    assert isinstance(last, Finished)
    assert last.result.exhausted
    return last.result.candidates


def _keys(engine: EngineProcess, prepared: Prepared) -> set[str | None]:
    return {candidate.item for candidate in _decoded(engine, prepared)}


def test_both_sides_have_the_same_one_whenever_it_is_replaced(engine: EngineProcess, path: Path) -> None:
    save_catalogue(OLD, path)
    maker = _maker(engine, path)
    assert _keys(engine, _prepared(maker)) == {"old a", "old b", "old c"}
    assert _keys(engine, _prepared(maker, "item")) == {"old a", "old b", "old c"}
    for _ in range(2):
        save_catalogue(NEW, path)
        assert _keys(engine, _prepared(maker)) == {"new a", "new b"}
        save_catalogue(OLD, path)
        assert _keys(engine, _prepared(maker, "item")) == {"old a", "old b", "old c"}


def test_an_engine_process_leaves_out_short_items_too(engine: EngineProcess, path: Path) -> None:
    save_catalogue(OLD, path)
    hot = Sample(n=16, temperature=100.0, seed=1)
    prepared = _prepared(_maker(engine, path), strategy=hot, min_tokens=2)
    client = Client(engine)
    client.send(prepared)
    (*_, last) = prepared.assembler.events(client.last(prepared.request.request_id))
    assert isinstance(last, Finished)
    assert {candidate.item for candidate in last.result.candidates} == {"old a", "old b"}


def test_a_request_that_met_a_replacement_may_be_sent_again(engine: EngineProcess, path: Path) -> None:
    """Checked against the old one, and the engine finds the new one; nothing else is disturbed."""
    save_catalogue(OLD, path)
    maker = _maker(engine, path)
    client, late = Client(engine), _prepared(maker)
    save_catalogue(NEW, path)
    client.send(late)
    error = client.last(late.request.request_id)
    assert isinstance(error, UnavailableError)
    assert error.retry_after is not None
    assert _keys(engine, _prepared(maker)) == {"new a", "new b"}


def test_a_damaged_replacement_leaves_both_with_what_they_have(engine: EngineProcess, path: Path) -> None:
    save_catalogue(OLD, path)
    maker = _maker(engine, path)
    assert len(_keys(engine, _prepared(maker))) == 3
    damaged = path.with_name("damaged")
    damaged.write_bytes(b"no catalogue")
    damaged.replace(path)
    assert _keys(engine, _prepared(maker)) == {"old a", "old b", "old c"}


def test_a_new_process_starts_without_its_file_and_opens_it_later(engine: EngineProcess, path: Path) -> None:
    save_catalogue(OLD, path)
    maker = _maker(engine, path)
    states, client = States(engine), Client(engine)
    states.wait_for("serving")
    path.unlink()
    assert engine.pid is not None

    os.kill(engine.pid, signal.SIGKILL)
    states.wait_for("down")
    states.wait_for("serving")
    early = _prepared(maker)
    client.send(early)
    error = client.last(early.request.request_id)
    assert isinstance(error, UnavailableError)
    assert error.retry_after is not None
    save_catalogue(OLD, path)
    assert len(_keys(engine, _prepared(maker))) == 3
