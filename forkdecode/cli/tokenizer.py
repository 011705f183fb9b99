"""A model's tokenizer by itself, for commands that need no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import InvalidRequestError, ModelLoadError, invalid


def open_tokenizer(field: str, name: str) -> Any:
    """transformers' tokenizer of a model: the default model's, or that of a folder, a hub id or a .gguf file.
    Raises InvalidRequestError for `field`."""
    from forkdecode.model import own_tokenizer
    from forkdecode.model.default_model import SMOLLM2, ensure
    from forkdecode.model.hub import check_reached

    try:
        path = Path(name).expanduser()
        if name == DEFAULT_MODEL:
            found = own_tokenizer.open_tokenizer(str(ensure(SMOLLM2)), local=True)
        elif path.suffix.lower() == ".gguf" and path.is_file():
            found = own_tokenizer.open_gguf_tokenizer(path)
        else:
            local = path.is_dir()
            if not local:
                check_reached(name)
            found = own_tokenizer.open_tokenizer(str(path) if local else name, local=local)
    except ModelLoadError as error:
        raise InvalidRequestError(f"{field}: {error}", field=field) from error
    except Exception as error:  # transformers raises of every kind
        told = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise invalid(field, f"{name!r} can't be opened: {told}", "a model's folder or name") from error
    if found is None:
        raise invalid(field, f"{name!r} has no tokenizer", "a model that has one")
    return found
