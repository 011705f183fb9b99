"""Every flag once: its name is the field it sets in forkdecode.types or EngineConfig.

A flag that is not given is None and left out, so that the dataclasses' own defaults and checks hold.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from forkdecode.cli.constraints import FROM_FILES, read_file
from forkdecode.errors import invalid

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error and the engine's log.")]
Flags: TypeAlias = Mapping[str, tuple[Any, str]]
"""name -> (type of a value, help). `bool` is a switch, `list[...]` may be repeated."""

STRATEGY_FLAGS: Flags = {
    "strategy": (str, "greedy (default), sample, best-of, beam, diverse-beam or stochastic-beam."),
    "n": (int, "sample, best-of: how many candidates are returned."),
    "best_of": (int, "best-of: how many samples are drawn."),
    "width": (int, "Beam strategies: how many hypotheses each step keeps, in all groups together."),
    "groups": (int, "diverse-beam: number of groups, each of width / groups beams."),
    "diversity_penalty": (
        float,
        "diverse-beam: penalty on a token for each beam of an earlier group that has chosen it.",
    ),
    "num_return_sequences": (int, "beam, diverse-beam: how many candidates are returned; all by default."),
    "length_penalty": (float, "beam, diverse-beam: score = sum of log-probabilities / length ** penalty."),
    "early_stopping": (str, "beam, diverse-beam: true, false or never, as in transformers."),
    "scorer": (
        str,
        'beam, diverse-beam: length_normalised, or JSON such as {"length_normalised": {"alpha": 0.6}}.',
    ),
    "widths": (str, "beam: the width of each step, such as 8,4,2; the last applies to all later steps."),
    "sibling_penalty": (float, "beam: penalty per rank of a continuation among those of its own beam."),
    "patience": (float, "beam: pool of ceil(patience * width) hypotheses; needs --early-stopping true."),
    "temperature": (float, "sample, best-of, stochastic-beam: the sampling temperature."),
    "top_k": (int, "Sampling: draw only from the k most likely tokens; 0: off."),
    "top_p": (float, "Sampling: draw only from the smallest set of tokens with this total probability."),
    "min_p": (float, "Sampling: drop tokens below this fraction of the highest probability."),
    "typical_p": (float, "Sampling: locally typical sampling with this total probability; 1: off."),
    "seed": (int, "Sampling: the same seed draws the same candidates."),
    "rank_by": (str, "best-of: cumulative_logprob, mean_logprob, or none to return all samples unranked."),
    "first_finished": (int, "best-of: stop when this many samples have finished."),
}
OPTION_FLAGS: Flags = {
    "max_tokens": (int, "The most tokens a candidate may generate."),
    "min_tokens": (int, "The fewest tokens a candidate may generate."),
    "stop": (
        list[str],
        "A text that ends a candidate, taken literally: a newline is $'\\n' in most shells. Repeatable.",
    ),
    "stop_token_ids": (list[int], "A token id that ends a candidate. Repeatable."),
    "include_stop": (bool, "Keep the stop text in the text."),
    "ignore_eos": (bool, "EOS tokens don't end a candidate."),
    "repetition_penalty": (
        float,
        "Penalise tokens that occur in the prompt or the text by this factor; 1: off.",
    ),
    "presence_penalty": (
        float,
        "Subtract this once from the score of a token that has been generated before.",
    ),
    "frequency_penalty": (
        float,
        "Subtract this from a token's score for each time it has been generated before.",
    ),
    "no_repeat_ngram_size": (int, "No n-gram of this size occurs twice; 0: off."),
    "logit_bias": (list[str], "TOKEN_ID=BIAS: add the bias to this token's logit. Repeatable."),
    "bad_words": (list[str], "A text that is never generated. Repeatable."),
    "allowed_token_ids": (list[int], "A token id that may be generated; all others may not. Repeatable."),
    "forced_prefix": (str, "A text that each candidate begins with."),
    "regex": (str, "Constraint: the whole text matches this regular expression."),
    "json_schema": (str, "Constraint: the text is JSON, valid under this schema (JSON or @FILE)."),
    "lark": (str, "Constraint: the text follows this Lark grammar (a text or @FILE)."),
    "gbnf": (str, "Constraint: the text follows this GBNF grammar of llama.cpp (a text or @FILE)."),
    "from_catalogue": (
        str,
        "Constraint: the text is an item of the catalogue NAME; NAME:item ends it without EOS.",
    ),
    "logprobs": (int, "Add log-probabilities to JSON results: of the chosen and the k most likely tokens."),
    "update_every": (int, "Beam strategies, shown live: steps between two updates; 0: not shown."),
    "update_beams": (int, "Beam strategies, shown live: how many of the best hypotheses; 0: all."),
    "priority": (int, "Requests with a higher priority run first."),
    "cache_salt": (str, "Prompts share cached blocks only with prompts of the same salt."),
}
ENGINE_FLAGS: Flags = {
    "model": (str, "A folder, a hub id or a .gguf file, instead of the default model."),
    "dtype": (str, "auto, float32, bfloat16 or float16."),
    "device": (str, "auto, or a torch device such as cuda."),
    "threads": (int, "CPU threads for the engine's matrix products."),
    "max_positions": (int, "Use fewer positions than the model has."),
    "kv_memory": (str, "Memory for KV blocks: 2GiB, or 40% of what is free; auto: 25%, on a GPU 90%."),
    "num_blocks": (int, "Number of KV blocks, instead of --kv-memory."),
    "block_size": (int, "Tokens per block: a power of two, 1 to 128."),
    "swap_memory": (str, "Host memory for preempted requests' blocks."),
    "max_step_tokens": (int, "Token budget of a step."),
    "max_prefill_tokens": (int, "The most prompt tokens in a step that also decodes."),
    "max_waiting": (int, "How many requests may wait; more are refused."),
    "watermark": (float, "Fraction of the blocks that admission leaves free."),
    "prefix_cache": (bool, "Keep blocks of finished prompts for later prompts; on by default."),
    "preemption": (str, "auto, recompute or swap."),
    "overcommit": (bool, "Admit requests that may run out of blocks before they end."),
    "aging_steps": (int, "Steps of waiting that raise a request's priority by one."),
    "weights": (str, "native, or int8: faster on CPUs with VNNI, but not exactly the same model."),
    "compile": (str, "none, or layers: run the model's layers through torch.compile; GPU only."),
    "batch_invariant": (bool, "On a GPU, attention doesn't depend on what else is in the step."),
    "catalogues": (list[str], "NAME=FILE: a catalogue that constraints can name. Repeatable."),
}
_SINGULAR = {
    "catalogues": "catalogue",
    "stop_token_ids": "stop-token-id",
    "bad_words": "bad-word",
    "allowed_token_ids": "allowed-token-id",
}
_ON_BY_DEFAULT = frozenset({"prefix_cache"})
_PANELS = ((STRATEGY_FLAGS, "Strategy"), (OPTION_FLAGS, "Options"), (ENGINE_FLAGS, "Engine"))


def with_flags(
    *tables: Flags, before: Sequence[inspect.Parameter] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the flags of `tables`; they arrive in its **flags, as do the parameters `before`, which
    its help lists first."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            return command(**values)

        own = inspect.signature(command, eval_str=True).parameters.values()
        kept = [p.replace(kind=p.KEYWORD_ONLY) for p in own if p.kind is not p.VAR_KEYWORD]
        added = [_parameter(name, *spec) for table in tables for name, spec in table.items()]
        wrapper.__signature__ = inspect.Signature([*before, *kept, *added])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def given(flags: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that the user gave, with text turned into what the dataclasses take."""
    found = {name: value for name, value in flags.items() if value is not None and value != []}
    if "logit_bias" in found:
        found["logit_bias"] = dict(_bias(text) for text in found["logit_bias"])
    for name in FROM_FILES:
        if name in found:
            found[name] = read_file(name, found[name])
    if "catalogues" in found:
        found["catalogues"] = dict(_catalogue(text) for text in found["catalogues"])
    if "widths" in found:
        found["widths"] = _widths(found["widths"])
    if "early_stopping" in found:
        text = found["early_stopping"]
        found["early_stopping"] = {"true": True, "false": False}.get(text.lower(), text)
    return found


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    flag = "--" + _SINGULAR.get(name, name.replace("_", "-"))
    if name in _ON_BY_DEFAULT:
        flag = f"{flag}/--no-{name.replace('_', '-')}"
    panel = next(title for table, title in _PANELS if name in table)
    option = typer.Option(flag, help=text, rich_help_panel=panel, show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _catalogue(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise invalid("catalogue", f"{text!r} names no file", "NAME=FILE")
    return name, Path(path)


def _widths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(width) for width in text.split(","))
    except ValueError:
        raise invalid("widths", f"{text!r} is not a list of widths", "integers separated by commas") from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise invalid("logit_bias", f"{text!r} is not a bias", "TOKEN_ID=NUMBER") from None
