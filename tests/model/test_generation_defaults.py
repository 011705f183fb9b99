"""Who compares results with generate() is told of a model's own defaults."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig, LlamaForCausalLM

from forkdecode.model.generation_defaults import changing_defaults, tell_defaults
from forkdecode.model.loader import load
from tests.tiny_model import llama_config, save_tiny_llama


def model(**defaults: Any) -> LlamaForCausalLM:
    found = LlamaForCausalLM(llama_config())
    found.generation_config = GenerationConfig(**defaults)
    return found


@pytest.mark.parametrize(
    "defaults",
    [
        {},
        {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [1, 2], "max_new_tokens": 9},
        {"repetition_penalty": 1.0, "length_penalty": 1, "no_repeat_ngram_size": 0, "suppress_tokens": []},
    ],
)
def test_what_changes_no_greedy_or_beam_search_is_not_told(
    defaults: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    found = model(**defaults)
    assert changing_defaults(found) == {}
    tell_defaults("tiny", found)
    assert not caplog.records


def test_what_does_is_told_when_loading(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_tiny_llama(tmp_path / "tiny")
    given: dict[str, Any] = {"repetition_penalty": 1.1, "suppress_tokens": [7], "forced_eos_token_id": 0}
    GenerationConfig(**given).save_pretrained(tmp_path / "tiny")
    with caplog.at_level(logging.WARNING):
        load(str(tmp_path / "tiny"), dtype="float32")
    (record,) = (r for r in caplog.records if r.name == "forkdecode.model.generation_defaults")
    told = record.getMessage()
    assert told.startswith("model 'tiny': its generation_config has repetition_penalty=1.1")
    assert "suppress_tokens=[7], forced_eos_token_id=0, which generate() follows" in told
