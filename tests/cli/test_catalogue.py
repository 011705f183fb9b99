"""`forkdecode catalogue`: from files of items to catalogues."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from forkdecode.cli import catalogue as cli_catalogue
from forkdecode.cli.catalogue import _BATCH
from forkdecode.cli.tokenizer import open_tokenizer
from forkdecode.config import DEFAULT_MODEL
from forkdecode.constraints.catalogue_file import open_catalogue
from tests.cli.conftest import Cli
from tests.llm.models import EOS_ID, ids


@pytest.fixture
def items(tmp_path: Path) -> Path:
    return tmp_path / "items.jsonl"


def test_items_of_tokens(cli: Cli, items: Path, tmp_path: Path) -> None:
    items.write_text(
        '{"id": "a", "tokens": [1, 2]}\n{"tokens": [3]}\r\n{"id": 7, "tokens": [1, 2, 5]}\n\n \n'
    )
    out = tmp_path / "c"
    ran = cli("catalogue", "build", str(items), "-o", str(out))
    assert (ran.code, ran.err) == (0, "")
    catalogue = open_catalogue(out)
    assert [catalogue.key(path) for path in ([1, 2], [3], [1, 2, 5])] == ["a", "2", "7"]
    for said in ("items", "3", "1 to 3", "1 items are prefixes", "not given", catalogue.info.digest):
        assert said in ran.out


def test_info_is_what_was_built(cli: Cli, items: Path, tmp_path: Path) -> None:
    items.write_text(
        "".join(f'{{"tokens": [{i % 9}, {i}]}}\n' for i in range(2 * _BATCH + 1)) + '{"tokens": [0, 0]}\n'
    )
    out = str(tmp_path / "c")
    built = cli("catalogue", "build", str(items), "-o", out, "--model", "some/model", "--json")
    told = cli("catalogue", "info", out, "--json")
    facts = json.loads(told.out)
    assert (built.code, told.code, json.loads(built.out)) == (0, 0, facts)
    assert (facts["items"], facts["duplicates"], facts["depth"]) == (2 * _BATCH + 1, 1, 2)
    assert (facts["model"], facts["bytes"]) == ("some/model", Path(out).stat().st_size)
    assert "1 duplicates left out" in cli("catalogue", "info", out).out


@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
def test_texts_by_a_model_s_tokenizer(
    cli: Cli, model: str, items: Path, tmp_path: Path, as_json: bool
) -> None:
    texts = ["hello world", " hello", "wörld", "<|end|>"]
    lines = [json.dumps({"text": text}) if as_json else text for text in texts]
    items.write_text("\n".join(lines))
    ran = cli("catalogue", "build", str(items), "-o", str(tmp_path / "c"), "--model", model)
    assert ran.code == 0, ran.err
    catalogue = open_catalogue(tmp_path / "c")
    assert [catalogue.key(ids(text)) for text in texts] == ["1", "2", "3", "4"]
    assert ids("<|end|>") == (EOS_ID,)


def test_texts_without_a_model_are_of_the_default_one(
    cli: Cli, model: str, items: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def opened(field: str, name: str) -> Any:
        asked.append((field, name))
        return open_tokenizer(field, model)

    monkeypatch.setattr(cli_catalogue, "open_tokenizer", opened)
    for text, wanted in (('{"tokens": [1]}', None), ("ab", DEFAULT_MODEL)):
        items.write_text(text)
        assert cli("catalogue", "build", str(items), "-o", str(tmp_path / "c")).code == 0
        assert open_catalogue(tmp_path / "c").info.model == wanted
    assert asked == [("model", DEFAULT_MODEL)]


@pytest.mark.parametrize("as_json", [False, True], ids=["plain", "json"])
def test_a_byte_order_mark_is_no_part_of_an_item(
    cli: Cli, model: str, items: Path, tmp_path: Path, as_json: bool
) -> None:
    lines = [
        json.dumps({"text": text, "id": i}) if as_json else text for i, text in enumerate(("ab", "cd"), 1)
    ]
    built = []
    for encoding in ("utf-8", "utf-8-sig"):
        items.write_text("\n".join(lines), encoding)
        assert cli("catalogue", "build", str(items), "-o", str(tmp_path / "c"), "--model", model).code == 0
        built.append(open_catalogue(tmp_path / "c"))
    assert built[0].info == built[1].info
    assert [built[1].key(ids(text)) for text in ("ab", "cd")] == ["1", "2"]


WRONG = {
    "a title above JSON": (
        'id,text\n{"text": "a"}\n{"tokens": [1]}\n',
        "line 1: is plain text, but all other lines are items in JSON",
    ),
    "no JSON": ('{"tokens": [1]}\n{"tokens": \n', "line 2: is not JSON"),
    "a list": ('{"tokens": [1]}\n[1]\n', "line 2: is not a JSON object"),
    "nothing said": ('{"id": 1}\n', "line 1: has both tokens and text, or neither"),
    "both": ('{"text": "a", "tokens": [1]}\n', "line 1: has both tokens and text"),
    "another field": ('{"token": [1]}\n', "line 1: has an unknown field 'token'"),
    "an id that is none": ('{"id": [1], "tokens": [1]}\n', "line 1: has an unusable id"),
    "tokens that are a text": ('{"tokens": "1 2"}\n', "line 1: its tokens are not a list"),
    "a text that is none": ('{"text": 3}\n', "line 1: its text is not a text"),
    "a negative token": ('{"tokens": [1]}\n{"tokens": [-1]}\n', "line 2: its tokens: -1"),
    "a fraction": ('{"tokens": [1.5]}\n', "line 1: its tokens: 1.5"),
    "no tokens": ('{"tokens": []}\n', "line 1: its tokens: is empty"),
    "an empty line": ('{"tokens": [1]}\n\n{"tokens": [2]}\n', "line 2: is empty"),
    "an empty file": ("\n\n", "has no items"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named(name: str, cli: Cli, items: Path, tmp_path: Path) -> None:
    text, message = WRONG[name]
    items.write_text(text)
    ran = cli("catalogue", "build", str(items), "-o", str(tmp_path / "c"))
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1
    assert not (tmp_path / "c").exists()


def test_what_no_tokenizer_takes_is_named(cli: Cli, model: str, items: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "c")
    items.write_text('{"text": "fine"}\n{"text": "\\ud800"}\n')
    assert (
        "line 2: holds a lone surrogate"
        in cli("catalogue", "build", str(items), "-o", out, "--model", model).err
    )
    items.write_text('{"id": "\\ud800", "tokens": [1]}\n')
    assert "line 1: its id: holds a lone surrogate" in cli("catalogue", "build", str(items), "-o", out).err
    items.write_bytes(b"fine\n\xff\n")
    assert "line 2: is not UTF-8" in cli("catalogue", "build", str(items), "-o", out, "--model", model).err
    items.write_text("a\n")
    ran = cli("catalogue", "build", str(items), "-o", out, "--model", str(tmp_path))
    assert (ran.code, "model: " in ran.err) == (2, True)


def test_info_of_what_is_no_catalogue(cli: Cli, items: Path) -> None:
    items.write_text("no catalogue at all")
    ran = cli("catalogue", "info", str(items))
    assert ran.code == 2
    assert "does not begin like a catalogue" in ran.err
