"""Tiny real tokenizers of each family, built here."""

from __future__ import annotations

from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "the end of the story, and the user said: stop it now",
    "Grüße aus Köln, naïve façade, ein schöner Tag\n\nUser: ok",
    "世界 こんにちは 你好世界 👩‍👩‍👧 🎉 привет мир",
] * 4


def _wrap(tokenizer: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """GPT-2's kind: BPE over bytes, with a special token and an added one that is plain text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(
        [AddedToken("added text é", normalized=False), AddedToken("plain", normalized=False)]
    )
    return _wrap(tokenizer, eos_token="<|end|>")


@cache
def sentencepiece(*, first_space: bool = True) -> PreTrainedTokenizerFast:
    """Llama's kind: BPE with U+2581 for spaces and <0xXX> for bytes outside the vocabulary."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    trained.train_from_iterator(CORPUS[:1], trainer)
    vocab: dict[str, int] = trained.get_vocab()
    for byte in range(256):
        vocab.setdefault(f"<0x{byte:02X}>", len(vocab))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if first_space:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return _wrap(tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@cache
def metaspace() -> PreTrainedTokenizerFast:
    """Unigram-like vocabularies with a Metaspace decoder."""
    words = ["<unk>", "▁", "▁the", "▁end", "of", "▁world", ",", "é", "世"]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<unk>"])
    return _wrap(tokenizer, unk_token="<unk>")


@cache
def wordpiece() -> PreTrainedTokenizerFast:
    """A decoder that the table does not know: it must ask it."""
    words = ["[UNK]", "play", "##ing", "the", "##s", ",", "世"]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    tokenizer.add_special_tokens(["[UNK]"])
    return _wrap(tokenizer, unk_token="[UNK]")


def decode(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    """The whole text at once, as transformers gives it."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text
