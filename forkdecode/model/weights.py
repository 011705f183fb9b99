"""Opening a model and its tokenizer with transformers, from a folder, a hub id or a GGUF file."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel
from transformers.utils import logging as hf_logging

from forkdecode.model.support import check_config

Opened = tuple[PreTrainedModel, Any]
TAKEN = "forkdecode_taken"
"""Attribute of a model whose weights a runner has taken."""


@contextmanager
def quiet() -> Iterator[None]:
    """transformers without its progress bars and notices: a terminal has one owner, the caller."""
    settings: Any = hf_logging  # untyped there
    verbosity, bars = settings.get_verbosity(), settings.is_progress_bar_enabled()
    settings.set_verbosity_error()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        settings.set_verbosity(verbosity)
        if bars:
            settings.enable_progress_bar()


def open_pretrained(name: str, dtype: str, *, local: bool) -> Opened:
    """A folder or hub id in transformers' own format. The config is checked before the weights."""
    where: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    config = AutoConfig.from_pretrained(name, **where)
    check_config(config)
    tokenizer = AutoTokenizer.from_pretrained(name, **where)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype), **where)
    return model, tokenizer


def open_gguf(path: Path, dtype: str) -> Opened:
    """A GGUF file, dequantised into plain weights."""
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False, "local_files_only": True}
    folder = str(path.parent)
    check_config(AutoConfig.from_pretrained(folder, **where))
    tokenizer = AutoTokenizer.from_pretrained(folder, **where)
    where["quantization_config"] = GgufConfig(dequantize=True)
    # The conversion's own progress bar goes to stderr past transformers' switch for bars.
    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **where)
    return model, tokenizer


def convert(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Moves the model to `device` and its parameters to `dtype`, in place.

    Buffers keep their dtype: rotary frequencies rounded to bfloat16 turn by whole radians too much
    or too little at position 1,000, and transformers loads them in float32 whatever the model's dtype.
    """
    torch.nn.Module.to(model, device)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
