"""An engine process compiles what its front end has compiled, for the same tokens, stop ids and prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forkdecode import LLM
from forkdecode.constraint_types import JsonSchema, Lark, Regex
from forkdecode.constraints.grammar_text import GrammarSpec
from forkdecode.engine.remote import EngineProcess
from forkdecode.requests.prepare import RequestMaker
from forkdecode.results import Finished
from forkdecode.types import Beam, Sample, Strategy
from tests.engine.engine_process import CONFIG, Client, started
from tests.llm.grammar_oracle import check
from tests.llm.models import EOS_ID, ids, outcome
from tests.tiny_model import save_tiny_llama

SPECS: dict[str, tuple[GrammarSpec, dict[str, Any]]] = {
    "regex": (Regex("[äé]{2,4}[.!]?"), {"stop_token_ids": ids("z")}),
    "schema": (JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 2}), {"min_tokens": 4}),
    "lark": (Lark('start: "a" start "b" | "hello" <|begin|>?'), {"forced_prefix": "aa"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def engine(folder: str) -> Iterator[EngineProcess]:
    with started(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def llm(folder: str) -> Iterator[LLM]:
    # Bits of scores depend on the block size, and on a dtype that "auto" would choose by the CPU.
    with LLM(folder, dtype="float32", num_blocks=512, block_size=CONFIG.block_size, threads=1) as llm:
        yield llm


@pytest.mark.parametrize("strategy", [Beam(width=3), Sample(n=3, seed=1)], ids=["beam", "samples"])
@pytest.mark.parametrize("name", SPECS)
def test_what_comes_back_parses_and_is_what_one_process_makes(
    engine: EngineProcess, llm: LLM, name: str, strategy: Strategy
) -> None:
    spec, options = SPECS[name]
    given = {"max_tokens": 24, "constraint": spec, **options}
    maker = RequestMaker(engine.load_tokenizer(), engine.info)
    prepared = maker.prepare("hello", strategy, None, given, chat=False, request_id=None)
    client = Client(engine)
    client.send(prepared)
    last = prepared.assembler.events(client.last(prepared.request.request_id))[-1]
    assert isinstance(last, Finished)
    for candidate in last.result.candidates:
        if name != "lark":  # which has a token without text
            check(spec, candidate, maker.token_bytes, (EOS_ID, *options.get("stop_token_ids", ())))
    assert outcome(last.result) == outcome(llm.decode("hello", strategy, **given))
    maker.close()
