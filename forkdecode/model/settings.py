"""What a model's files say of it that an engine takes for true: where it ends, and how far it goes."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from forkdecode.checks import is_integer, shown
from forkdecode.errors import ModelLoadError
from forkdecode.model.support import refuse

UNBOUNDED = 2**31 - 1
"""Positions of architectures without a limit of their own: they are int32 in the kernels."""


def positions(name: str, config: Any) -> int:
    """Those of a text config. Raises ModelLoadError for what is no number of them."""
    found = getattr(config, "max_position_embeddings", None)
    if found is None:
        return UNBOUNDED
    if not is_integer(found) or found < 1:
        raise _wrong(name, "max_position_embeddings", found, "an integer of at least 1, or none for no limit")
    return int(found)


def eos_ids(name: str, model: PreTrainedModel, vocab_size: int) -> tuple[int, ...]:
    """EOS ids of generation_config, else of the config; those outside the vocabulary can't be drawn. Raises
    ModelLoadError for what is no id and no list of them."""
    for source in (model.generation_config, model.config, model.config.get_text_config(decoder=True)):
        found = getattr(source, "eos_token_id", None)
        if found is None:
            continue
        ids = found if isinstance(found, (list, tuple)) else [found]
        if not all(map(is_integer, ids)):
            where = (
                "generation_config's eos_token_id" if source is model.generation_config else "eos_token_id"
            )
            raise _wrong(name, where, found, "a token id, or a list of them")
        return tuple(sorted({int(i) for i in ids if 0 <= i < vocab_size}))
    return ()


def _wrong(name: str, field: str, found: object, allowed: str) -> ModelLoadError:
    return refuse(name, f"{field} is {shown(found)}; allowed: {allowed}")
