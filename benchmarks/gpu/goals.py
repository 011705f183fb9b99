"""What gpu_check found, as tables, and its goals as passed or not. Takes parts that failed or are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

Found = Mapping[str, Any]
"""What a part found."""


@dataclass(frozen=True)
class Goal:
    """value: what was measured, None where nothing was; it passes up to `limit`, or from there on where least
    is meant."""

    name: str
    value: float | None
    limit: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """What was not measured does not; nor does NaN."""
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return asdict(self) | {"passed": self.passed}

    def row(self) -> str:
        """Of the table."""
        sign = "at least" if self.at_least else "at most"
        value = "not measured" if self.value is None else f"{self.value:.3g}"
        return f"| {self.name} | {value} | {sign} {self.limit:g} | {'pass' if self.passed else 'FAIL'} |"


def goals(found: Mapping[str, Found], expected: Mapping[str, bool]) -> list[Goal]:
    """Those of all parts. expected: names of the workloads of attention, and whether each is judged by its
    ceiling."""
    made = []
    for name, judged in expected.items():
        part = found.get(f"attention, {name}", {})
        if judged:
            made.append(Goal(f"share of its ceiling: {name}", part.get("share_of_ceiling"), 0.7, True))
        if "nothing shared" in name:
            made.append(Goal(f"times per-row paged: {name}", part.get("times_paged"), 1.05))
    made.append(_goal(found, "selection", "times_one_read", "times one read of the logits: selection", 2.0))
    share = "share of a step of 8B: the GPU idle in a step"
    made.append(_goal(found, "engine", "idle_share_of_8b_step", share, 0.05))
    return made


def _goal(found: Mapping[str, Found], part: str, field: str, name: str, limit: float) -> Goal:
    return Goal(name, found.get(part, {}).get(field), limit)


def goal_table(made: list[Goal]) -> str:
    """All goals."""
    return "\n".join(["| goal | measured | wanted | |", "|---|---|---|---|", *(goal.row() for goal in made)])


HEAD = "| part | measured | ok | seconds |\n|---|---|---|---|"


def part_row(name: str, found: Found) -> str:
    """A part's row of the table, whatever is missing of it."""
    ok = "yes" if found.get("ok") else "NO"
    seconds = found.get("seconds")
    told = f"{seconds:.0f}" if isinstance(seconds, float) else ""
    return f"| {name} | {_said(name, found)} | {ok} | {told} |"


def _said(name: str, found: Found) -> str:
    if "error" in found:
        return str(found["error"]).strip().splitlines()[-1].replace("|", "/")[:200]
    say = SAID.get(name) or SAID.get(name.partition(",")[0], _microseconds)
    try:
        return ", ".join(say(found))
    except (KeyError, TypeError, ValueError) as error:  # a part that says less than it should
        return f"unreadable: {type(error).__name__}: {error}"


def _environment(f: Found) -> Iterator[str]:
    yield str(f["device"])
    yield f"Python {f['python']}"
    yield from (f"{name} {f['versions'][name]}" for name in ("torch", "triton", "numpy", "numba"))
    yield from (f"{name} is MISSING ({len(parts)} parts)" for name, parts in f["missing"].items())


def _ceilings(f: Found) -> Iterator[str]:
    yield f"copy {f['bandwidth'] / 1e12:.2f} TB/s"
    yield f"product {f['flops'] / 1e12:.0f} TFLOP/s"


def _attention(f: Found) -> Iterator[str]:
    yield f"forest {f['forest_us']:.0f} us = {f['share_of_ceiling']:.0%} of {f['bound_by']}"
    yield f"paged {f['paged_us']:.0f} us in {f['paged_splits']}"
    yield f"SDPA {f['sdpa_us']:.0f} us ({f['sdpa_backend'].split('_')[0].lower()})"
    yield f"errors {max(f['errors'].values()):.1g} of {f['allowed_error']:.1g}"


def _plan(f: Found) -> Iterator[str]:
    yield f"{f['compiled_us'] / 1e6:.1f} s for the first"
    yield f"{max(f['plan_us'].values()):.0f} us at most for those of attention"


def _selection(f: Found) -> Iterator[str]:
    yield f"{f['device_us']:.0f} us = {f['times_one_read']:.1f} reads of the logits"
    yield f"{f['us']:.0f} us with its copies and launches"
    if "torch_us" in f:
        yield f"torch {f['torch_us']:.0f} us"


def _transfers(f: Found) -> Iterator[str]:
    yield f"a copy each way {f['us']:.0f} us = {f['share_of_8b_step']:.1%} of a step of 8B"


def _moves(f: Found) -> Iterator[str]:
    yield f"copies {f['copy_us']:.0f} us = {f['copy_share_of_bandwidth']:.0%} of a copy"
    yield f"a token each {f['write_us']:.0f} us"


def _exact(f: Found) -> Iterator[str]:
    for name, case in f.items():
        if isinstance(case, Mapping):
            yield f"{name} {case['same']} of {case['of']} token for token"
            yield from _told(case)


def _engine(f: Found) -> Iterator[str]:
    yield f"{f['prompts']} beams of {f['width']}: {f['tokens_per_second']:.0f} tokens/s"
    yield f"{f['ratio']:.2f}x transformers"
    yield f"{f['step_ms']:.2f} ms a step after {f['prefill_ms']:.0f} ms for prompts"
    if f["idle_us"] is not None:
        yield f"GPU idle {f['idle_us']:.0f} us of it = {f['idle_share_of_8b_step']:.1%} of a step of 8B"
    elif f["idle_lost"]:
        yield f"GPU idle not known: {f['idle_lost'][:80]}"
    if f["idle_us_samples"] is not None:
        yield f"GPU idle {f['idle_us_samples']:.0f} us where samples are launched ahead"
    yield f"ready in {f['start_s']:.0f} s, captures {f['captures_s']:.0f} s"
    yield f"scores off by {f['score_gap']:.2g}"
    yield from _told(f)


def _told(f: Found) -> Iterator[str]:
    """What the engine logged, once each."""
    yield from dict.fromkeys(f"{event['event']}: {event.get('reason', '')}" for event in f["told"])


def _microseconds(f: Found) -> Iterator[str]:
    if "us" in f:
        yield f"{f['us']:.0f} us"
    if "different" in f:
        yield f"{f['different']} differ"


SAID: dict[str, Callable[[Found], Iterator[str]]] = {
    "environment": _environment,
    "ceilings": _ceilings,
    "block moves": _moves,
    "plan": _plan,
    "attention": _attention,
    "selection": _selection,
    "row selection": _selection,
    "transfers": _transfers,
    "engine, exact": _exact,
    "engine": _engine,
}
