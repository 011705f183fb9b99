"""Where a caller finds what it asks for by a name that is no option: settings of strategies, and the
names that transformers, vLLM and SGLang have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from forkdecode.strategy_types import Beam, BestOf, DiverseBeam, Sample, StochasticBeam

_STRATEGIES = (Sample, BestOf, Beam, DiverseBeam, StochasticBeam)
NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens, which does not count the prompt",
    "min_new_tokens": "min_tokens",
    "min_length": "min_tokens, which does not count the prompt",
    "stop_strings": "stop",
    "stop_sequences": "stop",
    "eos_token_id": "stop_token_ids, with ignore_eos=True if the model's own should not end a candidate",
    "include_stop_str_in_output": "include_stop",
    "no_stop_trim": "include_stop",
    "bad_words_ids": "bad_words",
    "begin_suppress_tokens": "prefix_allowed_tokens_fn",
    "suppress_tokens": "bad_words",
    "sequence_bias": "logit_bias, for single tokens",
    "forced_bos_token_id": "forced_prefix",
    "prefix": "forced_prefix",
    "num_beams": "strategy=Beam(width=...)",
    "beam_width": "strategy=Beam(width=...)",
    "use_beam_search": "strategy=Beam(width=...)",
    "num_beam_groups": "strategy=DiverseBeam(groups=...)",
    "do_sample": "strategy=Sample()",
    "num_samples": "strategy=Sample(n=...)",
    "output_scores": "logprobs",
    "top_logprobs": "logprobs",
    "return_logprob": "logprobs",
    "top_logprobs_num": "logprobs",
    "prompt_logprobs": "score()",
    "echo": "score()",
    "regex": "constraint=Regex(...)",
    "guided_regex": "constraint=Regex(...)",
    "json_schema": "constraint=JsonSchema(...)",
    "guided_json": "constraint=JsonSchema(...)",
    "guided_choice": 'constraint=Regex("a|b")',
    "structured_outputs": "constraint=Regex(...), JsonSchema(...) or Lark(...)",
    "guided_grammar": "constraint=Lark(...)",
    "ebnf": "constraint=Lark(...)",
    "force_words_ids": "constraint=Regex(...), or forced_prefix",
}


def hint(name: str) -> str | None:
    """What to write in its place, or None."""
    owners = [kind.__name__ for kind in _STRATEGIES if name in (f.name for f in fields(kind))]
    if owners:
        return f"as a setting of strategy={' or '.join(owners)}: {owners[0]}({name}=...)"
    return NAMES.get(name)
