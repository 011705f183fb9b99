"""A tiny Llama written as a GGUF file with 4-bit weights (Q4_1, as the default model's)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import quantize

from tests.tiny_model import BOS, CHAT_TEMPLATE, EOS, MERGES, vocabulary


def write_tiny_gguf(
    path: Path, *, layers: int = 2, width: int = 32, heads: int = 4, kv_heads: int = 2
) -> Path:
    """Random weights, the byte-level vocabulary with its merges, and a chat template."""
    vocab = vocabulary()
    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(256)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocab))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(list(vocab))
    writer.add_token_types([3 if token in (BOS, EOS) else 1 for token in vocab])
    writer.add_token_merges([f"{a} {b}" for a, b in MERGES])
    writer.add_bos_token_id(vocab[BOS])
    writer.add_eos_token_id(vocab[EOS])
    writer.add_chat_template(CHAT_TEMPLATE)
    _add_weights(writer, len(vocab), layers, width, width // heads * kv_heads)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(writer: Any, vocab_size: int, layers: int, width: int, kv_width: int) -> None:
    rng = np.random.default_rng(0)
    kind = gguf.GGMLQuantizationType.Q4_1

    def matrix(name: str, rows: int, columns: int) -> None:
        weights = (rng.standard_normal((rows, columns)) * 0.3).astype(np.float32)
        writer.add_tensor(name, quantize(weights, kind), raw_dtype=kind)

    matrix("token_embd.weight", vocab_size, width)
    for i in range(layers):
        for name, rows, columns in [
            ("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width),
            ("attn_output", width, width), ("ffn_gate", 2 * width, width), ("ffn_up", 2 * width, width),
            ("ffn_down", width, 2 * width),
        ]:  # fmt: skip
            matrix(f"blk.{i}.{name}.weight", rows, columns)
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(width, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
