"""A model's tokenizer by itself, for commands that need no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import invalid


def open_tokenizer(field: str, name: str) -> Any:
    """transformers' tokenizer of a model: the default model's, or that of a folder, a hub id or a .gguf file.
    Raises InvalidRequestError for `field`."""
    from transformers import AutoTokenizer

    from forkdecode.model.default_model import SMOLLM2, ensure

    load: Any = AutoTokenizer.from_pretrained
    path = Path(name).expanduser()
    try:
        if name == DEFAULT_MODEL:
            return load(str(ensure(SMOLLM2)))
        if path.suffix == ".gguf" and path.is_file():
            return load(str(path.parent), gguf_file=path.name)
        return load(str(path) if path.is_dir() else name, trust_remote_code=False)
    except Exception as error:  # transformers raises of every kind
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise invalid(field, f"{name!r} can't be opened: {told}", "a model's folder or name") from error
