"""Which of the tokenizers that transformers has for a folder is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from forkdecode.model.own_tokenizer import open_tokenizer
from tests.tiny_model import byte_tokenizer


class OfMistral:
    """As transformers takes for a tekken.json where mistral-common is installed."""

    all_special_ids = (0,)

    def added_tokens_decoder(self) -> Any:
        raise NotImplementedError

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 0, "a": 1}


def test_tokenizer_json_is_preferred_to_mistral_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OfMistral()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: own)
    (tmp_path / "tekken.json").write_text("{}")
    assert open_tokenizer(str(tmp_path), local=True) is own
    byte_tokenizer().save_pretrained(tmp_path)
    found = open_tokenizer(str(tmp_path), local=True)
    assert found is not None
    assert found.decode(found.encode("hello world")) == "hello world"
