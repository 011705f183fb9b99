"""Type checkers know the keywords of verbs and engines: those that are taken, and nothing else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from forkdecode import LLM, AsyncClient, AsyncLLM, AsyncTree, Client, EngineConfig, Options, Tree
from forkdecode.calls.many import ManyKeywords
from forkdecode.client.settings import ClientKeywords, RemoteManyKeywords
from forkdecode.config import EngineKeywords
from forkdecode.llm.session import LlmKeywords
from forkdecode.types import OptionKeywords

ROOT = Path(__file__).parents[1]
VERBS = [
    getattr(owner, name)
    for owner in (LLM, AsyncLLM, Client, AsyncClient, Tree, AsyncTree)
    for name in ("decode", "stream", "submit", "decode_many", "start")
    if hasattr(owner, name)
]
SETTINGS = """
[mypy]
strict = true
follow_imports = skip

[mypy-forkdecode.client.*,forkdecode.llm.*,forkdecode.calls.*,forkdecode.types,forkdecode.config]
follow_imports = silent

[mypy-forkdecode.results,forkdecode.strategy_types,forkdecode.constraint_types,forkdecode.errors]
follow_imports = silent
"""
"""What verbs are made of alone: neither torch nor what it brings."""


def names(record: type) -> set[str]:
    return {field.name for field in fields(record)}


def keywords(function: Callable[..., Any]) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}


def test_keywords_are_the_fields() -> None:
    assert set(OptionKeywords.__annotations__) == names(Options)
    assert set(EngineKeywords.__annotations__) == names(EngineConfig)
    for typed in (OptionKeywords, EngineKeywords, LlmKeywords, ClientKeywords):
        assert not typed.__required_keys__


def test_what_is_awaited_takes_the_same_as_what_is_made() -> None:
    assert set(LlmKeywords.__annotations__) == keywords(LLM) | names(EngineConfig)
    assert keywords(AsyncLLM) == keywords(LLM)
    assert set(ClientKeywords.__annotations__) == keywords(Client) == keywords(AsyncClient)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_no_verb_takes_just_any_keyword(verb: Callable[..., Any]) -> None:
    assert len(VERBS) == 22
    assert verb.__annotations__["given"] == "Unpack[OptionKeywords]"
    assert not keywords(verb) & names(Options)


def test_decode_many_is_typed_as_it_is_made() -> None:
    for typed, owners in ((ManyKeywords, (LLM, AsyncLLM)), (RemoteManyKeywords, (Client, AsyncClient))):
        for owner in owners:
            own = keywords(owner.decode_many) - {"return_errors"}
            assert set(typed.__annotations__) == own | names(Options)


def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    """What mypy says of a caller's file."""
    (tmp_path / "caller.py").write_text(text)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    monkeypatch.setenv("MYPYPATH", f"{ROOT}:{ROOT / 'kernels'}")
    monkeypatch.chdir(tmp_path)
    return api.run(["--config-file=mypy.ini", "--cache-dir=cache", "--no-error-summary", "caller.py"])[0]


RIGHT = """
from forkdecode.client import AsyncClient, Client
from forkdecode.llm import AsyncLLM, LLM

llm = LLM(num_blocks=64, kv_memory="40%", dtype="float32")
for each in (llm, Client(retries=1)):
    each.decode("a", max_tokens=3, stop="a", forced_prefix=[1, 2], bad_words=["a", [1]], logprobs=None)
    each.submit("a", allowed_token_ids=[1], logit_bias={1: 2}, repetition_penalty=1)
    each.tree("a").start([], stop=["a", "b"], stop_token_ids=(3,))

async def more() -> None:
    other = await AsyncLLM.create("a", device="cpu", num_blocks=2)
    await other.decode(["a"], max_tokens=3)
    client = await AsyncClient.create(timeout=3.0)
    await client.submit("a", chat=True, update_every=0)
"""
WRONG = """
from forkdecode.client import AsyncClient, Client
from forkdecode.llm import AsyncLLM, LLM

llm = LLM()
llm.decode("a", max_token=3)
llm.decode(["a"], max_token=3)
llm.decode("a", max_tokens="3")
llm.submit("a", max_token=3)
llm.stream("a", max_token=3)
llm.decode_many(["a"], max_token=3)
llm.tree("a").decode([], max_token=3)
Client().submit("a", max_token=3)
LLM(num_block=3)

async def more() -> None:
    await AsyncLLM.create("a", num_block=3)
    await AsyncClient.create(retry=3)
"""


MANY = """
from collections.abc import AsyncGenerator, Generator
from typing import assert_type

from forkdecode.client import AsyncClient, Client
from forkdecode.errors import ForkdecodeError
from forkdecode.llm import AsyncLLM, LLM
from forkdecode.results import DecodeResult

def raised(own: Owner, flag: bool) -> None:
    results = own.decode_many(["a"], max_tokens=3, concurrency=2, request_id=["b"])
    assert_type(results, Generator[DecodeResult, None, None])
    assert_type(own.decode_many(["a"], return_errors=False), Generator[DecodeResult, None, None])
    results.close()
    either = own.decode_many(["a"], return_errors=True)
    assert_type(either, Generator[DecodeResult | ForkdecodeError, None, None])
    either = own.decode_many(["a"], return_errors=flag)

async def awaited(own: AsyncOwner) -> None:
    results = own.decode_many(["a"], max_tokens=3)
    assert_type(results, AsyncGenerator[DecodeResult, None])
    await results.aclose()
    either = own.decode_many(["a"], return_errors=True)
    assert_type(either, AsyncGenerator[DecodeResult | ForkdecodeError, None])
"""


def test_what_is_right_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checked(tmp_path, monkeypatch, RIGHT) == ""


@pytest.mark.parametrize("owner", ["LLM", "Client"])
def test_the_results_of_many_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str) -> None:
    said = checked(tmp_path, monkeypatch, MANY.replace("Owner", owner))
    assert said == ""


def test_a_wrong_keyword_is_an_error_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = checked(tmp_path, monkeypatch, WRONG)
    lines = WRONG.splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if re.search(r"max_token|num_block|retry", line)}
    assert {int(number) for number in re.findall(r"^caller.py:(\d+): error", said, re.M)} == wrong, said
