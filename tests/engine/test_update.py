"""What an engine refuses of new weights, and what that leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from forkdecode import LLM
from forkdecode.engine.update import WeightUpdates
from forkdecode.errors import CapacityError, EngineClosedError, InvalidRequestError
from forkdecode.model.runner import Runner
from forkdecode.step import DeviceLostError
from tests.engine.journals import journaled
from tests.llm.models import PROMPT, TOKENIZER, opened, outcome, tiny_llama


def test_a_journal_tells_of_one_model(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "journal")
    model: Any = None
    with pytest.raises(InvalidRequestError, match="journal") as caught:
        engine.update(model)
    assert caught.value.field == "weights"
    engine.close()


def test_a_gpu_without_room_is_named_and_the_old_weights_serve_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with opened(tiny_llama(seed=0)) as llm:
        before = outcome(llm.decode(PROMPT))
        updates: WeightUpdates = llm._session.engine.weights
        with monkeypatch.context() as patch:
            patch.setattr(updates, "_prepare", full)
            with pytest.raises(CapacityError, match="second set of weights") as caught:
                llm.update_weights(tiny_llama(seed=1).state_dict())
        assert caught.value.field == "kv_memory"
        assert outcome(llm.decode(PROMPT)) == before


def test_a_gpu_that_is_lost_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(_: Any) -> None:
        raise DeviceLostError("cuda:0 does not answer any more")

    with LLM(tiny_llama(), tokenizer=TOKENIZER, num_blocks=64, threads=1) as llm:
        monkeypatch.setattr(Runner, "_warm_steps", lost)
        with pytest.raises(EngineClosedError, match="does not answer"):
            llm.update_weights(tiny_llama(seed=1).state_dict())
        llm._session.engine.thread.wait()
        with pytest.raises(EngineClosedError):
            llm.decode(PROMPT)


def test_a_callers_mode_is_nothing_to_the_engine() -> None:
    with opened(tiny_llama(seed=1)) as llm:
        expected = outcome(llm.decode(PROMPT))
    with opened(tiny_llama(seed=0)) as llm:
        with torch.inference_mode():
            llm.update_weights(tiny_llama(seed=1).state_dict())
        assert outcome(llm.decode(PROMPT)) == expected
        llm.update_weights(tiny_llama(seed=0).state_dict())
        assert outcome(llm.decode(PROMPT)) != expected
