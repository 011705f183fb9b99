"""Beams and greedy search of the engine against transformers' `generate`, in float32, on a real model.

    python -m benchmarks.parity [--model M] [--part widths|stopping] [--sample N] [--record FILE]

Two parts. widths: 24 prompts of 5 to 1,000 tokens, widths 1, 2, 4, 8 and 16 at the defaults. stopping:
8 prompts whose answers end early, so that the stopping rules differ, with 3 of them and 5 length
penalties at width 4. The engine decodes a chunk of cases in one batch; `generate` gets one prompt a
call. Equal means the same hypotheses in the same order, token for token, with scores within 1e-4
(relative above 1). Where a case differs, the smallest gap that decided anything in generate's own
search is told: below 1e-4 either answer is right.

With --record each case is written as it is done, and a second run with the same file goes on where
the first stopped. Exit code 1 when a case differs by more than a near tie.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.prompts import CHAT_PROMPTS, SHORT_ANSWERS, TEXT_PROMPTS, BenchmarkPrompt
from benchmarks.record import record
from forkdecode import LLM, Beam, Options
from forkdecode.config import DEFAULT_MODEL
from forkdecode.model.loader import LoadedModel, load
from forkdecode.step import F32
from forkdecode.strategy_types import EarlyStopping
from tests.oracle.beam_rule import Hypothesis, Rule, Search, beam_search
from tests.oracle.beam_rule import Path as Tokens
from tests.oracle.engines import hypotheses
from tests.oracle.generation import Generated, generate
from tests.oracle.verdict import TOLERANCE, difference

WIDTHS = (1, 2, 4, 8, 16)
STOPPING: tuple[EarlyStopping, ...] = (False, True, "never")
PENALTIES = (-1.0, 0.0, 0.5, 1.0, 2.0)
CHUNK = 8
"""Cases that the engine decodes in one batch."""


@dataclass(frozen=True)
class ParityCase:
    """One comparison. row: which line of the table it counts in."""

    part: str
    prompt: BenchmarkPrompt
    beam: Beam
    max_tokens: int

    @property
    def key(self) -> str:
        b = self.beam
        return f"{self.prompt.name} width={b.width} stop={b.early_stopping} penalty={b.length_penalty:g}"

    @property
    def row(self) -> str:
        if self.part == "widths":
            return f"width {self.beam.width}"
        return f"early_stopping {self.beam.early_stopping}, length_penalty {self.beam.length_penalty:g}"


def all_cases() -> list[ParityCase]:
    """120 cases of each part."""
    widths = [
        ParityCase("widths", prompt, Beam(width=width), 32)
        for prompt, width in itertools.product(TEXT_PROMPTS + CHAT_PROMPTS, WIDTHS)
    ]
    stopping = [
        ParityCase("stopping", prompt, Beam(width=4, early_stopping=mode, length_penalty=penalty), 48)
        for prompt, mode, penalty in itertools.product(SHORT_ANSWERS, STOPPING, PENALTIES)
    ]
    return widths + stopping


def sampled(cases: Sequence[ParityCase], count: int | None) -> list[ParityCase]:
    """`count` of them at random, always the same; a smaller sample is part of a larger one."""
    order = list(range(len(cases)))
    random.Random(1).shuffle(order)
    return [cases[i] for i in sorted(order[:count])]


class Comparison:
    """Both sides on one model."""

    def __init__(self, loaded: LoadedModel, threads: int | None = None) -> None:
        self._oracle = copy.deepcopy(loaded.model)
        self._oracle.generation_config.eos_token_id = None
        self._eos = frozenset(loaded.info.eos_ids)
        self._tokenizer = loaded.tokenizer
        self._engine = LLM(loaded.model, tokenizer=loaded.tokenizer, threads=threads)

    def close(self) -> None:
        self._engine.close()

    def run(self, cases: Sequence[ParityCase]) -> Iterator[tuple[ParityCase, dict[str, Any]]]:
        """Each case with its outcome."""
        prompts = [case.prompt.ids(self._tokenizer) for case in cases]
        ours = self._engine.decode(
            prompts, [c.beam for c in cases], options=[Options(max_tokens=c.max_tokens) for c in cases]
        )
        for case, ids, result in zip(cases, prompts, ours, strict=True):
            rule = Rule.of(case.beam, case.max_tokens)
            theirs = generate(self._oracle, ids, rule, self._eos)
            yield case, {"prompt_tokens": len(ids), **self._outcome(rule, hypotheses(result), theirs)}

    def _outcome(self, rule: Rule, got: Sequence[Hypothesis], theirs: Generated) -> dict[str, Any]:
        want = theirs.hypotheses
        found = difference(got, want)
        same = [(a.score, b.score) for a, b in zip(got, want, strict=False) if a.tokens == b.tokens]
        errors = [abs(a - b) / max(1.0, abs(b)) for a, b in same]
        lengths = [len(h.tokens) for h in want]
        outcome = {"equal": found is None, "score_error": max(errors, default=0.0), "lengths": lengths}
        if found is not None:
            search = replay(rule, theirs, self._eos)
            outcome |= {"difference": found, "gap": search.gap, "gap_at": search.gap_at}
            outcome["replayed"] = difference(search.hypotheses, want) is None
        return outcome


def replay(rule: Rule, theirs: Generated, eos: frozenset[int]) -> Search:
    """The plain rule on the scores that `generate` saw: its search again, with the deciding gaps."""

    def scores(paths: Sequence[Tokens]) -> F32:
        step = theirs.scores[len(paths[0])][: len(paths)].float()
        found: F32 = (step.log_softmax(-1) if rule.greedy else step).numpy()
        return found

    search = Search()
    with suppress(IndexError):  # generate stopped where the rule goes on, so that was a near tie
        beam_search(rule, scores, lambda path: path[-1] in eos, search)
    return search


def verdict(outcome: dict[str, Any]) -> str:
    """equal, near tie, or differs."""
    if outcome["equal"]:
        return "equal"
    return "near tie" if outcome["gap"] < TOLERANCE else "differs"


def recorded(path: Path | None, model: str) -> dict[str, dict[str, Any]]:
    """Outcomes of an earlier run on the same model, by case."""
    if path is None or not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    results = [line["result"] for line in lines if line["benchmark"] == "parity"]
    return {r["case"]: r for r in results if r["model"] == model}


def run(
    cases: Sequence[ParityCase], model: str, threads: int | None, path: Path | None
) -> dict[str, dict[str, Any]]:
    """Outcomes of all cases, those already recorded included."""
    name = Path(model).name
    outcomes = recorded(path, name)
    left = [case for case in cases if case.key not in outcomes]
    print(f"{len(cases)} cases, {len(cases) - len(left)} already recorded", flush=True)
    if not left:
        return outcomes
    comparison = Comparison(load(model, "float32"), threads)
    try:
        for first in range(0, len(left), CHUNK):
            for case, outcome in comparison.run(left[first : first + CHUNK]):
                outcomes[case.key] = {"model": name, "case": case.key, **outcome}
                if path is not None:
                    record("parity", outcomes[case.key], path)
                print(line(case, outcomes[case.key]), flush=True)
    finally:
        comparison.close()
    return outcomes


def line(case: ParityCase, outcome: dict[str, Any]) -> str:
    """One case, as it is done."""
    text = f"{verdict(outcome):8}  {case.key}  ({outcome['prompt_tokens']} prompt tokens)"
    if not outcome["equal"]:
        text += f"\n          {outcome['difference']}; {outcome['gap_at']}: gap {outcome['gap']:.2e}"
    return text


def table(cases: Sequence[ParityCase], outcomes: dict[str, dict[str, Any]]) -> str:
    """A Markdown table: one row a setting."""
    order = {case.row: i for i, case in enumerate(all_cases())}
    rows: dict[str, list[dict[str, Any]]] = {}
    for case in sorted(cases, key=lambda c: order[c.row]):
        rows.setdefault(case.row, []).append(outcomes[case.key])
    lines = [
        "| setting | cases | equal | near ties | differ | largest score error |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in {**rows, "all": [outcomes[c.key] for c in cases]}.items():
        counts = [sum(verdict(o) == v for o in found) for v in ("equal", "near tie", "differs")]
        error = max(o["score_error"] for o in found)
        lines.append(f"| {name} | {len(found)} | {' | '.join(map(str, counts))} | {error:.1e} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as forkdecode decode --model takes it")
    parser.add_argument("--part", choices=["widths", "stopping"], help="one part only")
    parser.add_argument("--sample", type=int, metavar="N", help="only N random cases")
    parser.add_argument("--record", type=Path, metavar="FILE", help="JSON lines to write and to go on from")
    parser.add_argument("--threads", type=int, help="for both sides")
    args = parser.parse_args()
    cases = [case for case in all_cases() if args.part in (None, case.part)]
    cases = sampled(cases, args.sample)
    outcomes = run(cases, args.model, args.threads, args.record)
    print("\n" + table(cases, outcomes))
    sys.exit(any(verdict(outcomes[case.key]) == "differs" for case in cases))


if __name__ == "__main__":
    main()
