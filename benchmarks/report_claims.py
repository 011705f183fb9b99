"""What is claimed for sharing by the PagedAttention paper and vLLM's announcement, beside what the simulator
and real decoding say.

Claims: sharing saves up to 55 % of memory and so gives up to 2.2 times the throughput, over the same system
without it; 2 to 4 times the throughput of systems with contiguous caches, for beams of 6 2.3 times that of
one that knows the lengths (section 6.3). A claim counts as reproduced from TOLERANCE of its lowest figure on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.report_layout import table
from benchmarks.report_simulate import ATTAINED, limits, load_key, most_served

Result = dict[str, Any]
Bounds = tuple[float, float | None]
"""A rate that is carried, or what is served, and the next one that is not carried, where one is known."""
TOLERANCE = 0.95
REPRODUCED, CONTRADICTED, MORE = "reproduced", "contradicted", "more than claimed"
CARD = ("opt-13b", "a100-40gb", 1)
"""The paper's model and card."""
BEAMS, ONE = (*CARD, "alpaca", "beam", 6, 0, None), (*CARD, "sharegpt", "sample", 1, 0, None)
H200 = ("8b", "h200", 1, "alpaca", "beam", 8, 0, None)


@dataclass(frozen=True)
class Claim:
    """least, most: what has to be found; most is None where the claim is one figure. systems: ours over
    theirs, by what is carried of `load` (served: by what is served). reasons: by verdict."""

    told: str
    least: float
    load: tuple[Any, ...]
    systems: tuple[str, str]
    reasons: Mapping[str, str]
    most: float | None = None
    served: bool = False

    def verdict(self, ratio: float) -> str:
        if ratio < TOLERANCE * self.least:
            return CONTRADICTED
        return MORE if self.most and ratio > self.most / TOLERANCE else REPRODUCED


KNOWN = "contiguous caches that know the lengths"
COPIED = "rows that copy what one of them has read of the prompt"
UNKNOWN = "contiguous caches of 2,048 tokens per row"
ALPACA, SHAREGPT = "(Alpaca, beams of 6)", "(ShareGPT, one sample)"
FILLED = "over its life a row fills six tenths of what was reserved for it, so 1.7x is the most"
READS = "each row reads the shared blocks, and admission keeps a block free for each row"
PAPERS = "blocks alone gain 1.3x there by the paper, which leaves 2.3 / 1.3 = 1.8x for sharing"
CLAIMS = (
    Claim(
        f"up to 2.2x by sharing: the same blocks, not shared {ALPACA}",
        2.2,
        BEAMS,
        ("paged", "unshared"),
        {CONTRADICTED: READS},
    ),
    Claim(
        "the same, a shared block read once",
        2.2,
        BEAMS,
        ("forest", "unshared"),
        {CONTRADICTED: PAPERS},
    ),
    Claim(
        f"the same, over {COPIED}",
        2.2,
        BEAMS,
        ("forest", "copied"),
        {CONTRADICTED: "the prompt is read once on both sides"},
    ),
    Claim(
        f"2.3x by blocks and sharing, over {KNOWN} {ALPACA}",
        2.3,
        BEAMS,
        ("paged", "exact"),
        {CONTRADICTED: READS},
    ),
    Claim(
        "the same, a shared block read once",
        2.3,
        BEAMS,
        ("forest", "exact"),
        {REPRODUCED: "steps are shorter, blocks free sooner"},
    ),
    Claim(
        f"2 to 4x over {KNOWN} {SHAREGPT}",
        2.0,
        ONE,
        ("paged", "exact"),
        {CONTRADICTED: FILLED},
        most=4.0,
    ),
    Claim(
        f"2 to 4x over {UNKNOWN} {SHAREGPT}",
        2.0,
        ONE,
        ("paged", "contiguous"),
        dict.fromkeys((REPRODUCED, MORE), "most rows need far less than 2,048"),
        most=4.0,
    ),
    Claim(
        f"2 to 4x over {UNKNOWN} {ALPACA}",
        2.0,
        BEAMS,
        ("paged", "contiguous"),
        {MORE: "one beam at a time fits into the baseline"},
        most=4.0,
    ),
    Claim(
        "up to 2.2x by sharing, 8B on an H200 (Alpaca, beams of 8)",
        2.2,
        H200,
        ("forest", "unshared"),
        {CONTRADICTED: "memory is not short there: what is saved is reading a prompt once a beam"},
        served=True,
    ),
    Claim(
        f"the same, over {COPIED}",
        2.2,
        H200,
        ("forest", "copied"),
        {CONTRADICTED: "memory is not short there, and the prompt is read once on both sides"},
        served=True,
    ),
    Claim(
        f"2 to 4x over {UNKNOWN} on an H200",
        2.0,
        H200,
        ("forest", "contiguous"),
        {CONTRADICTED: "memory is not short there"},
        most=4.0,
        served=True,
    ),
)


def claims(results: Mapping[str, list[Result]]) -> str:
    """A row for each claim that has records of both sides."""
    simulated = results.get("simulate", [])
    if not simulated:
        return "No record yet."
    most = {key: {s: (x, None) for s, x in own.items()} for key, own in most_served(simulated).items()}
    found: dict[bool, Mapping[tuple[Any, ...], Mapping[str, Bounds]]] = {True: most, False: limits(simulated)}
    rows = [row for row in [_memory(results), *(_row(claim, found) for claim in CLAIMS)] if row]
    head = ["claim", "ours", "theirs", "ours / theirs", "", "why"]
    return table(head, rows)


def _row(claim: Claim, found: Mapping[bool, Mapping[tuple[Any, ...], Mapping[str, Bounds]]]) -> list[str]:
    by_system = found[claim.served].get(claim.load, {})
    if not set(claim.systems) <= by_system.keys():
        return []
    (ours, above), (theirs, over) = (by_system[system] for system in claim.systems)
    what = "served" if claim.served else "carried"
    sides = [
        f"{system}: {rate:.3g}/s {what}" for system, rate in zip(claim.systems, (ours, theirs), strict=True)
    ]
    shown = f"{ours / theirs:.2f}x"
    if above and over:
        shown += f" ({ours / over:.2f} to {above / theirs:.2f})"
    verdict = claim.verdict(ours / theirs)
    return [claim.told, *sides, shown, verdict, claim.reasons.get(verdict, "")]


def _memory(results: Mapping[str, list[Result]]) -> list[str]:
    """Saved by sharing: simulated at the highest rate carried, and by the real model."""
    simulated = [
        r
        for r in results["simulate"]
        if load_key(r) == BEAMS and r["system"] == "paged" and r["met"] >= ATTAINED
    ]
    real = [
        r for r in results.get("memory", ()) if (r["trace"], r["kind"], r["width"]) == ("alpaca", "beam", 6)
    ]
    if not simulated or not real:
        return []
    saving, decoded = max(simulated, key=lambda r: float(r["rate"]))["saving"], real[-1]["saving"]
    met = min(saving, decoded) >= TOLERANCE * 0.55
    return [
        "up to 55 % of memory saved by sharing (Alpaca, beams of 6)",
        f"simulated: {saving:.0%}",
        f"SmolLM2, decoded: {decoded:.0%}",
        "",
        REPRODUCED if met else CONTRADICTED,
        "beams share their beginnings as there" if met else "",
    ]
