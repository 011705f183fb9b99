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

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, and the engine's log.")]
Flags: TypeAlias = Mapping[str, tuple[Any, str]]
"""name -> (type of a value, help). `bool` is a switch, `list[...]` may be repeated."""

STRATEGY_FLAGS: Flags = {
    "strategy": (str, "greedy (default), sample, best-of, beam, diverse-beam or stochastic-beam."),
    "n": (int, "sample, best-of: how many candidates are returned."),
    "best_of": (int, "best-of: how many are drawn."),
    "width": (int, "Of beams: how many hypotheses are kept at each step, of all groups."),
    "groups": (int, "diverse-beam: groups of width / groups beams each."),
    "diversity_penalty": (
        float,
        "diverse-beam: what a token costs for each beam of an earlier group with it.",
    ),
    "num_return_sequences": (int, "beam, diverse-beam: how many are returned; all by default."),
    "length_penalty": (float, "beam, diverse-beam: score = sum of log-probabilities / length ** penalty."),
    "early_stopping": (str, "beam, diverse-beam: true, false or never."),
    "scorer": (str, "beam, diverse-beam: length_normalised, or JSON: a name with its settings."),
    "widths": (str, "beam: the width of each step, 8,4,2: the last for all that follow."),
    "sibling_penalty": (float, "beam: what a candidate loses by rank among those of its own beam."),
    "patience": (float, "beam: pool of ceil(patience * width); needs early stopping true."),
    "temperature": (float, "Of what draws: sample, best-of, stochastic-beam."),
    "top_k": (int, "Draw from the k most likely tokens; 0 is off."),
    "top_p": (float, "Draw from the smallest set of this probability."),
    "min_p": (float, "Drop tokens below this share of the likeliest one's probability."),
    "typical_p": (float, "Locally typical sampling."),
    "seed": (int, "The same seed repeats the same candidates."),
    "rank_by": (str, "best-of: cumulative_logprob or mean_logprob; none: all, unranked."),
    "first_finished": (int, "best-of: stop when this many have finished."),
}
OPTION_FLAGS: Flags = {
    "max_tokens": (int, "Generated tokens at most."),
    "min_tokens": (int, "Generated tokens at least."),
    "stop": (list[str], "A text that ends a candidate, as it is: a newline is $'\\n' in most shells."),
    "stop_token_ids": (list[int], "A token id that ends a candidate."),
    "include_stop": (bool, "Keep the stop text."),
    "ignore_eos": (bool, "EOS doesn't end a candidate."),
    "repetition_penalty": (float, "Divides the logits of tokens seen before."),
    "presence_penalty": (float, "Subtracted once from tokens generated before."),
    "frequency_penalty": (float, "Subtracted for each time a token was generated before."),
    "no_repeat_ngram_size": (int, "No n-gram of this size twice."),
    "logit_bias": (list[str], "TOKEN_ID=BIAS, added to its logit."),
    "bad_words": (list[str], "A text that is never generated."),
    "allowed_token_ids": (list[int], "Only these token ids are generated."),
    "forced_prefix": (str, "A text each candidate begins with."),
    "regex": (str, "The whole text matches this regular expression."),
    "json_schema": (str, "The text is JSON, valid by this schema: JSON, or @FILE."),
    "lark": (str, "The text follows this Lark grammar: a text, or @FILE."),
    "gbnf": (str, "The text follows this grammar in llama.cpp's EBNF: a text, or @FILE."),
    "from_catalogue": (str, "NAME of a catalogue whose items come out; NAME:item: without EOS."),
    "logprobs": (int, "Log-probabilities of the top k tokens of each step, in --json."),
    "update_every": (int, "beam, streamed: show the live hypotheses every so many steps; 0: never."),
    "update_beams": (int, "beam, streamed: how many of the best are shown; 0: all."),
    "priority": (int, "Higher runs first."),
    "cache_salt": (str, "Prompts share cached blocks only under the same salt."),
}
ENGINE_FLAGS: Flags = {
    "model": (str, "The default model, a folder, a hub id or a .gguf file."),
    "dtype": (str, "auto, float32, bfloat16 or float16."),
    "device": (str, "auto or a device of torch."),
    "threads": (int, "Threads of the engine's matrix products."),
    "max_positions": (int, "Serve fewer positions than the model has."),
    "kv_memory": (str, "Memory for KV blocks: 2GiB, or 40% of what is free; auto: 25%, on a GPU 90%."),
    "num_blocks": (int, "KV blocks, instead of --kv-memory."),
    "block_size": (int, "Tokens a block: a power of two, 1 to 128."),
    "swap_memory": (str, "Host memory for preempted groups."),
    "max_step_tokens": (int, "Token budget of a step."),
    "max_prefill_tokens": (int, "Prefill share of a step that also decodes."),
    "max_waiting": (int, "Requests that may wait."),
    "watermark": (float, "Share of the blocks that admission leaves free."),
    "prefix_cache": (bool, "Keep blocks of finished prompts for later ones; --no-prefix-cache."),
    "preemption": (str, "auto, recompute or swap."),
    "overcommit": (bool, "Admit what may run out of blocks before it ends."),
    "aging_steps": (int, "Steps of waiting that count as one level of priority."),
    "weights": (str, "native, or int8: faster on CPUs with VNNI, and nearly the same model."),
    "compile": (str, "none, or layers: the model's layers by torch.compile, on a GPU."),
    "batch_invariant": (bool, "Attention on a GPU doesn't depend on what else is in the step."),
    "catalogues": (list[str], "NAME=FILE: a catalogue that constraints may be from."),
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
    """Gives a command the flags of `tables`; they arrive in its **flags, as do those that are told before its
    own."""

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
        raise invalid(
            "widths", f"{text!r} is no list of widths", "integers with commas between them"
        ) from None


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise invalid("logit_bias", f"{text!r} is not a bias", "TOKEN_ID=NUMBER") from None
