"""Loading a model by name, folder, hub id or GGUF file, and saying what the engine must know of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import ModelLoadError, invalid
from forkdecode.model.default_model import SMOLLM2, ensure
from forkdecode.model.generation_defaults import tell_defaults
from forkdecode.model.hub import check_reached
from forkdecode.model.info import DTYPE_BYTES, ModelInfo
from forkdecode.model.packing import multiplies_bfloat16
from forkdecode.model.probe import probe
from forkdecode.model.settings import eos_ids, positions
from forkdecode.model.support import check_config, check_positions, one_line
from forkdecode.model.weights import TAKEN, Opened, check_floats, convert, open_gguf, open_pretrained, quiet

_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """model: in eval mode, on its device. tokenizer: transformers' own, or None where the model has
    none. info: plain data."""

    model: PreTrainedModel
    tokenizer: Any | None
    info: ModelInfo


def load(
    model: str = DEFAULT_MODEL,
    dtype: str = "auto",
    device: str = "auto",
    *,
    tokenizer: Any | None = None,
    max_positions: int | None = None,
) -> LoadedModel:
    """Load a model that forkdecode can serve.

    model: DEFAULT_MODEL, a local folder, a .gguf file or a hub id. dtype: of weights and KV cache;
    "auto" is bfloat16 where the device multiplies it natively, else float32. device: "auto" is the CPU.
    tokenizer: to take instead of the model's own. max_positions: serve fewer positions than the model has.
    Raises ModelLoadError, with the reason, for what can't be had, opened or served, and
    InvalidRequestError for a wrong dtype or device.
    """
    chosen_dtype = resolve_dtype(dtype, reached(device))
    name, (opened, tokenizer) = _open(model, chosen_dtype, tokenizer)
    check_floats(name, opened)
    return _ready(name, opened, tokenizer, chosen_dtype, device, max_positions)


def adopt(
    model: PreTrainedModel,
    tokenizer: Any | None = None,
    dtype: str = "auto",
    device: str = "auto",
    *,
    max_positions: int | None = None,
) -> LoadedModel:
    """Take a model that is in memory already; it is changed in place. dtype "auto" is its own, and
    device "auto" where it is. Raises ModelLoadError for what can't be served, such as a model that was taken
    before: its weights are not in it any more."""
    check_not_taken(model)
    check_config(model.config)
    own = str(model.dtype).removeprefix("torch.")
    chosen = resolve_dtype(own if dtype == "auto" else dtype)
    name = str(getattr(model.config, "name_or_path", "")) or type(model).__name__
    check_floats(name, model)
    convert(model, model.device, getattr(torch, chosen))
    where = str(next(model.parameters()).device) if device == "auto" else device
    return _ready(name, model, tokenizer, chosen, where, max_positions)


def check_not_taken(model: PreTrainedModel) -> None:
    """Raises ModelLoadError for a model whose weights an engine has taken."""
    if getattr(model, TAKEN, False):
        raise ModelLoadError(
            "model: an engine has taken this one, with its weights; allowed: a model that is loaded anew",
            field="model",
        )


def _ready(
    name: str,
    opened: PreTrainedModel,
    tokenizer: Any | None,
    dtype: str,
    device: str,
    max_positions: int | None,
) -> LoadedModel:
    try:
        torch.nn.Module.to(opened, reached(device))
        opened.requires_grad_(False)
        torch.nn.Module.train(opened, False)  # a model made of a config has dropout, also while it is probed
    except RuntimeError as error:
        raise _unusable(device, error) from error
    _name_decoder(opened)
    seen = probe(name, opened)
    tell_defaults(name, opened)
    config = opened.config.get_text_config(decoder=True)
    info = ModelInfo(
        name=name,
        vocab_size=seen.vocab_size,
        max_positions=check_positions(name, config, positions(name, config), max_positions),
        eos_ids=eos_ids(name, opened, seen.vocab_size),
        kv_shapes=seen.kv_shapes,
        windows=seen.windows,
        dtype=dtype,
        num_weights=sum(p.numel() for p in opened.parameters()),
    )
    return LoadedModel(opened, tokenizer, info)


def _name_decoder(model: PreTrainedModel) -> None:
    """Llama 4's text model has its decoder elsewhere than its base_model_prefix says, and would itself be its
    base_model."""
    if model.base_model is model:
        found = [name for name, child in model.named_children() if isinstance(child, PreTrainedModel)]
        model.base_model_prefix = found[0] if len(found) == 1 else model.base_model_prefix


def resolve_dtype(dtype: str, device: torch.device = _CPU) -> str:
    """The dtype that "auto" stands for on a device, or the one asked for, checked."""
    if dtype in DTYPE_BYTES:
        return dtype
    if dtype != "auto":
        allowed = ", ".join(("auto", *DTYPE_BYTES))
        raise invalid("dtype", f"{dtype!r} is unknown", allowed)
    if device.type == "cuda":
        native = torch.version.hip is not None or torch.cuda.get_device_capability(device)[0] >= 8
    else:
        native = multiplies_bfloat16()
    return "bfloat16" if native else "float32"


def reached(device: str) -> torch.device:
    """resolve_device's, once it has held something. Raises ModelLoadError for one that can't be used here."""
    found = resolve_device(device)
    try:
        torch.zeros(1, dtype=torch.float32, device=found)
    except (RuntimeError, AssertionError) as error:  # torch asserts where it was built without the device
        raise _unusable(device, error) from error
    return found


def _unusable(device: str, error: BaseException) -> ModelLoadError:
    return ModelLoadError(f"device: {device!r} can't be used: {one_line(error)}", field="device")


def resolve_device(device: str) -> torch.device:
    """The device that "auto" stands for (the CPU, which the kernels are made for), or the one asked for."""
    if device == "auto":
        return torch.device("cpu")
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise invalid("device", f"{device!r} is unknown", "auto, cpu, or a device of torch") from error


def _open(model: str, dtype: str, tokenizer: Any | None) -> tuple[str, Opened]:
    """(name, opened model and tokenizer). Whatever transformers raises becomes a ModelLoadError."""
    try:
        path = Path(model).expanduser()
        with quiet():
            if model == DEFAULT_MODEL:
                return model, open_pretrained(str(ensure(SMOLLM2)), dtype, tokenizer, local=True)
            if model and path.is_dir():
                if not (path / "config.json").is_file():
                    raise ModelLoadError(f"model: folder {model!r} holds no config.json", field="model")
                return path.resolve().name, open_pretrained(str(path), dtype, tokenizer, local=True)
            is_gguf = path.suffix.lower() == ".gguf"
            if path.is_file():
                if is_gguf:
                    return path.stem, open_gguf(path, dtype, tokenizer)
                raise ModelLoadError(
                    f"model: {model!r} is a file, and no .gguf one; allowed: its folder, or a .gguf file",
                    field="model",
                )
            if path.is_absolute() or is_gguf or model.startswith((".", "~")) or not model:
                raise ModelLoadError(f"model: no file or folder {model!r}", field="model")
            check_reached(model)
            return model, open_pretrained(model, dtype, tokenizer, local=False)
    except ModelLoadError:
        raise
    except Exception as error:  # from_pretrained raises of every kind: missing files, bad JSON, no network
        raise ModelLoadError(
            f"model {model!r} can't be opened: {one_line(error)}; allowed: {DEFAULT_MODEL}, "
            "a folder or hub id that transformers can open, or a .gguf file",
            field="model",
        ) from error
