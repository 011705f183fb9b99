"""Grammars speak of the generated text as it is told, whatever the tokenizer makes of spaces and bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from forkdecode import LLM, Beam, Greedy, JsonSchema, Regex, Sample, Strategy
from tests.llm.grammar_oracle import reads
from tests.llm.models import opened, tiny_llama

WORDS = [
    "\u2581",
    "\u2581\u2581",
    "\u2581hello",
    "hello",
    "\u2581world",
    "\u2581a",
    *'abcdehlorw.,!"[]',
    "\u2581[",
    "é",
]
STRATEGIES: dict[str, Strategy] = {
    "greedy": Greedy(),
    "samples": Sample(n=8, seed=2, temperature=1.5),
    "beam": Beam(width=8, num_return_sequences=8),
}


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """As Llama 2's: a space is written as U+2581, one is put before the text and dropped when it is read,
    and bytes stand for characters without a token."""
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *WORDS]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(name, special=True) for name in pieces[:3]])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    tokenizer = sentencepiece_tokenizer()
    # The embedding has more rows than there are tokens, as is usual.
    model = tiny_llama(vocab_size=len(tokenizer.get_vocab()) + 37, eos_token_id=2, bos_token_id=1)
    with opened(model, tokenizer=tokenizer) as found:
        yield found


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("prompt", [[1], "hello", [1, 3 + 0x61]], ids=["no text", "text", "a byte"])
@pytest.mark.parametrize("pattern", ["hello( world)?", " ?(hello|a| {2})", "[é-ü]{1,3}", " hello"])
def test_the_text_matches(llm: LLM, pattern: str, prompt: list[int] | str, strategy: str) -> None:
    result = llm.decode(prompt, STRATEGIES[strategy], max_tokens=24, constraint=Regex(pattern))
    for candidate in result.candidates:
        assert candidate.finish_reason == "eos"
        assert re.fullmatch(pattern, candidate.text)
        assert max(candidate.token_ids) < 3 + 256 + len(WORDS)


def test_where_a_text_begins_its_first_word_has_the_token_of_a_word(llm: LLM) -> None:
    """ "_hello" reads "hello" there, and is allowed; behind a text it is " hello", and isn't."""
    space_hello = llm.tokenizer.convert_tokens_to_ids("\u2581hello")
    for prompt, allowed in (([1], True), ([1, 3 + 0x61], False)):
        found = llm.decode(
            prompt, Beam(width=16, num_return_sequences=16), max_tokens=8, constraint=Regex("hello")
        )
        assert {c.text for c in found.candidates} == {"hello"}
        assert any(c.token_ids[0] == space_hello for c in found.candidates) == allowed


@pytest.mark.parametrize("prompt", [[1], "hello"], ids=["no text", "text"])
def test_schemas(llm: LLM, prompt: list[int] | str) -> None:
    spec = JsonSchema({"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2})
    result = llm.decode(prompt, STRATEGIES["samples"], max_tokens=40, constraint=spec)
    ended = [c for c in result.candidates if c.finish_reason == "eos"]
    assert ended
    assert all(reads(spec, c.text.encode()) == (True, True) for c in ended)
