"""`forkdecode serve --catalogue`: items by name for clients, replaced while the service runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkdecode import Beam, Client, InvalidRequestError, Sample
from forkdecode.constraint_types import FromCatalogue
from forkdecode.constraints.catalogue_build import build_catalogue
from forkdecode.constraints.catalogue_file import save_catalogue
from tests.cli.conftest import Cli
from tests.cli.test_serve import served


def test_clients_name_catalogues_and_get_items(model: str, tmp_path: Path) -> None:
    path, other = tmp_path / "c", tmp_path / "other"
    save_catalogue(build_catalogue([(1, 2), (3,)], ["a", "b"]), path)
    save_catalogue(build_catalogue([(5,)]), other)
    flags = ("--catalogue", f"items={path}", "--catalogue", f"other={other}")
    with served(model, "127.0.0.1:0", *flags) as server, Client(server.address) as client:
        assert client.info.catalogues == ("items", "other")
        items = FromCatalogue("items")
        result = client.decode("hello", Beam(width=4), constraint=items, max_tokens=4)
        assert {candidate.item for candidate in result.candidates} == {"a", "b"}
        assert result.exhausted
        one = client.decode("hello", constraint=FromCatalogue("other", end="item"))
        assert [(c.item, c.token_ids, c.finish_reason) for c in one.candidates] == [("0", (5,), "stop")]
        save_catalogue(build_catalogue([(6, 6, 6)], ["c"]), path)
        drawn = client.decode("hello", Sample(n=3, seed=1), constraint=items, max_tokens=4)
        assert [candidate.item for candidate in drawn.candidates] == ["c"] * 3
        assert not drawn.exhausted
        with pytest.raises(
            InvalidRequestError, match="'none' is no catalogue here; allowed: 'items', 'other'"
        ) as e:
            client.decode("hello", constraint=FromCatalogue("none"))
        assert e.value.field == "constraint.name"


def test_what_can_t_be_served_is_said_at_once(cli: Cli, model: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"no catalogue at all")
    flags = ("--listen", "127.0.0.1:0", "--model", str(tmp_path / "no model"))
    for given, message in (
        ("nothing", "'nothing' names no file"),
        ("=x", "names no file"),
        (f"a={tmp_path / 'bad'}", "does not begin like a catalogue"),
        (f"a={tmp_path / 'missing'}", "can't be opened"),
    ):
        ran = cli("serve", *flags, "--catalogue", given)
        assert ran.code == 2
        assert message in ran.err


def test_catalogues_are_for_decode_too(cli: Cli, model: str, tmp_path: Path) -> None:
    save_catalogue(build_catalogue([(1,), (2, 3)], ["the first", "the second"]), tmp_path / "c")
    flags = ("--model", model, "--num-blocks", "64", "--strategy", "beam", "--from-catalogue", "c")
    command = ("decode", "hi", *flags, "--catalogue", f"c={tmp_path / 'c'}")
    shown, told = cli(*command), cli(*command, "--json")
    assert shown.code == 0, shown.err
    assert "item" in shown.out.splitlines()[0]
    assert "the first" in shown.out
    found = [candidate["item"] for candidate in json.loads(told.out)["candidates"]]
    assert sorted(found) == ["the first", "the second"]
    wrong = cli("decode", "hi", *flags, "--catalogue", f"c={model}")
    assert wrong.code == 2
    assert "can't be opened" in wrong.err
