"""Opening a model and its tokenizer with transformers, from a folder, a hub id or a GGUF file."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig, PreTrainedModel
from transformers.utils import logging as hf_logging

from forkdecode.logs import get_logger
from forkdecode.model.own_tokenizer import open_gguf_tokenizer, open_tokenizer
from forkdecode.model.support import check_config, refuse

_log = get_logger(__name__)
Opened = tuple[PreTrainedModel, Any]
TAKEN = "forkdecode_taken"
"""Attribute of a model whose weights a runner has taken."""
DEQUANTISED = frozenset({"fp8", "mxfp4"})
"""Formats whose weights are made plain when they are read, with a GPU and without."""
NAMED = 3
"""So many weights are named in an error at most."""


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


def open_pretrained(name: str, dtype: str, tokenizer: Any | None, *, local: bool) -> Opened:
    """A folder or hub id in transformers' own format. The config is checked before the weights. tokenizer: to
    be taken instead of its own, which is not opened then."""
    where: dict[str, Any] = {"trust_remote_code": False, "local_files_only": local}
    config = AutoConfig.from_pretrained(name, **where)
    check_config(config)
    if tokenizer is None:
        tokenizer = open_tokenizer(name, local=local)
    scaled = getattr(config, "quantization_config", None)
    if isinstance(scaled, dict) and scaled.get("quant_method") in DEQUANTISED:
        scaled["dequantize"] = True
        where["config"] = config
    return _whole(name, name, dtype, where), tokenizer


def open_gguf(path: Path, dtype: str, tokenizer: Any | None = None) -> Opened:
    """A GGUF file, dequantised into plain weights. tokenizer: as above."""
    where: dict[str, Any] = {"gguf_file": path.name, "trust_remote_code": False, "local_files_only": True}
    folder = str(path.parent)
    check_config(AutoConfig.from_pretrained(folder, **where))
    if tokenizer is None:
        tokenizer = open_gguf_tokenizer(path)
    where["quantization_config"] = GgufConfig(dequantize=True)
    # The conversion's own progress bar goes to stderr past transformers' switch for bars.
    with redirect_stderr(io.StringIO()):
        return _whole(path.name, folder, dtype, where), tokenizer


def _whole(name: str, source: str, dtype: str, where: dict[str, Any]) -> PreTrainedModel:
    """The model with all of its weights: transformers fills those that are in no file with random numbers and
    only warns. Raises ModelLoadError, with the names of some."""
    load: Any = AutoModelForCausalLM.from_pretrained  # typed there as if it returned a model alone
    loaded: tuple[PreTrainedModel, dict[str, Any]] = load(
        source,
        dtype=getattr(torch, dtype),
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # refused below, by their names
        **where,
    )
    model, told = loaded
    if missing := sorted(told["missing_keys"]):
        raise refuse(name, f"its files lack {some(missing)}")
    wrong = [f"{key} {shape(there)} instead of {shape(own)}" for key, there, own in told["mismatched_keys"]]
    if wrong:
        raise refuse(name, f"its files don't fit its config: {some(sorted(wrong))}")
    if more := sorted(told["unexpected_keys"]):
        _log.warning(f"model {name!r} has no place for {some(more)}, which its files hold")
    return model


def some(names: list[str]) -> str:
    """The first of them, and how many there are besides."""
    rest = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {rest} more" if rest > 0 else "")


def shape(size: Sequence[int]) -> str:
    """As an error names it."""
    return "x".join(map(str, size))


def check_floats(name: str, model: PreTrainedModel) -> None:
    """Raises ModelLoadError for weights of 8-bit floats: they mean nothing without their scales, and those
    are of no standard form."""
    for key, parameter in model.named_parameters():
        if parameter.is_floating_point() and parameter.element_size() == 1:
            kind = str(parameter.dtype).removeprefix("torch.")
            reason = f"{key} is {kind}, with scales beside it; dequantised weights are served"
            raise refuse(name, reason)


def convert(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Moves the model to `device` and its parameters to `dtype`, in place.

    Parameters that transformers keeps in float32 beside bfloat16 (routers of experts, sinks) are float32 here
    too. Buffers keep their dtype: rotary frequencies rounded to bfloat16 turn by whole radians too much
    or too little at position 1,000, and transformers loads them in float32 whatever the model's dtype.
    """
    torch.nn.Module.to(model, device)
    stays = _kept_in_float32(model, dtype)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            kept = stays is not None and stays.search(name)
            parameter.data = parameter.data.to(torch.float32 if kept else dtype)


def _kept_in_float32(model: PreTrainedModel, dtype: torch.dtype) -> re.Pattern[str] | None:
    """The names of parameters that the model's classes want in float32: see PreTrainedModel."""
    globs: set[str] = set()
    if dtype in (torch.float16, torch.bfloat16):
        globs.update(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        globs.update(getattr(model, "_keep_in_fp32_modules", None) or ())
    return re.compile("|".join(glob.replace("*", ".*") for glob in sorted(globs))) if globs else None


def take(model: PreTrainedModel) -> None:
    """Marks a model whose weights an engine repacks. What would save a checkpoint without its layers says so
    instead."""
    setattr(model, TAKEN, True)
    for name in ("save_pretrained", "push_to_hub"):
        setattr(model, name, _taken)


def _taken(*_: Any, **__: Any) -> None:
    raise RuntimeError(
        "an engine has taken this model, and its weights; hand over copy.deepcopy(model) to keep one"
    )
