"""A tiny random-weight model with a tokenizer, saved to a folder as transformers would open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

EOS, BOS = "<|end|>", "<|begin|>"
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r")]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def vocabulary() -> dict[str, int]:
    """Byte-level tokens of all 256 bytes, a few merges, then EOS and BOS: 264 entries."""
    tokens = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in MERGES] + [EOS, BOS]
    return {token: i for i, token in enumerate(tokens)}


def byte_tokenizer(*, adds_bos: bool = False) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with BOS, EOS and a chat template that writes the BOS itself."""
    from tokenizers.processors import TemplateProcessing

    vocab = vocabulary()
    backend = Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(EOS, special=True), AddedToken(BOS, special=True)])
    if adds_bos:
        backend.post_processor = TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, vocab[BOS])])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def llama_config(**changes: Any) -> LlamaConfig:
    """Two layers, 4 query and 2 key/value heads of size 8; pad_token_id None, for a pad id zeroes a row."""
    vocab = vocabulary()
    settings: dict[str, Any] = {
        "vocab_size": len(vocab),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "eos_token_id": vocab[EOS],
        "bos_token_id": vocab[BOS],
        "pad_token_id": None,
        "initializer_range": 0.3,
    }
    return LlamaConfig(**(settings | changes))


def save_model(model: PreTrainedModel, folder: Path, *, adds_bos: bool = False) -> Path:
    """Save with the byte tokenizer."""
    model.save_pretrained(folder)
    byte_tokenizer(adds_bos=adds_bos).save_pretrained(folder)
    return folder


def save_tiny_llama(folder: Path, *, seed: int = 0, adds_bos: bool = False, **changes: Any) -> Path:
    """A random Llama of about 25,000 weights."""
    torch.manual_seed(seed)
    return save_model(LlamaForCausalLM(llama_config(**changes)).eval(), folder, adds_bos=adds_bos)
