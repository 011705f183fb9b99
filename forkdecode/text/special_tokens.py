"""A tokenizer's special tokens, of whatever kind the tokenizer is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def special_ids(tokenizer: Any) -> set[int]:
    """Ids that stand for no text."""
    return set(tokenizer.all_special_ids) | {i for i, token in _added(tokenizer).items() if token.special}


def special_names(tokenizer: Any) -> dict[int, str]:
    """The names of special tokens by id."""
    if added := _added(tokenizer):
        return {i: str(token.content) for i, token in added.items() if token.special}
    ids, spelled = list(tokenizer.all_special_ids), getattr(tokenizer, "convert_ids_to_tokens", None)
    return {} if spelled is None else dict(zip(ids, map(str, spelled(ids)), strict=True))


def _added(tokenizer: Any) -> Mapping[int, Any]:
    """Its table of added tokens; transformers' tokenizer for mistral-common has a method that raises."""
    found = getattr(tokenizer, "added_tokens_decoder", None)
    return found if isinstance(found, Mapping) else {}
