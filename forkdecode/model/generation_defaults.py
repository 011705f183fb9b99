"""A model's own defaults (generation_config), which generate() follows and an engine does not."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from forkdecode.logs import get_logger

_log = get_logger(__name__)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "repetition_penalty": (1,),
    "no_repeat_ngram_size": (0,),
    "length_penalty": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "guidance_scale": (1,),
    "early_stopping": (False,),
    "exponential_decay_length_penalty": (),
    "bad_words_ids": ([],),
    "sequence_bias": ({}, []),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
}
"""What changes greedy and beam search, and its values beside None that change nothing."""


def changing_defaults(model: PreTrainedModel) -> dict[str, Any]:
    """The defaults of `model` by which generate()'s greedy and beam search differ from what was asked for."""
    defaults = getattr(model, "generation_config", None)
    values = {name: getattr(defaults, name, None) for name in _NEUTRAL}
    return {name: v for name, v in values.items() if v is not None and v not in _NEUTRAL[name]}


def tell_defaults(name: str, model: PreTrainedModel) -> None:
    """Warns of them: an engine takes what a request says, and else its own defaults."""
    if found := changing_defaults(model):
        values = ", ".join(f"{key}={value!r}"[:80] for key, value in found.items())
        _log.warning(
            f"model {name!r}: its generation_config has {values}, which generate() follows; "
            "a request here has its own"
        )
