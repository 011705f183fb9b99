"""Records as Markdown tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks import (
    report_catalogue,
    report_cpu,
    report_engine,
    report_kernels,
    report_latency,
    report_searches,
    report_serving,
)
from benchmarks.report_growth import growth, growth_model
from benchmarks.report_layout import NAMES, table
from benchmarks.report_simulate import calibration, carried, served, simulate
from benchmarks.report_summary import parity
from benchmarks.report_throughput import throughput

Result = dict[str, Any]


def memory(results: list[Result]) -> str:
    head = ["trace", "kind", "width or n", "requests", "pairing", "saving", "paper, 2 to 6", "blocks / ideal"]
    head += ["waste", "copies per token", "KB copied per token", "contiguous / ours", "reserved / ours"]
    return table(head, map(memory_row, in_order(results)))


def in_order(results: list[Result]) -> list[Result]:
    """Results of benchmarks.memory as the paper's figures have them: traces, samples before beams, widths."""
    return sorted(results, key=lambda r: (list(NAMES).index(r["trace"]), r["kind"] == "beam", r["width"]))


def memory_row(r: Result) -> list[str]:
    paper = "{} to {} %".format(*r["paper"]) if r["paper"] else ""
    shown = [NAMES[r["trace"]], r["kind"], str(r["width"]), f"{r['requests']:,}", f"{r['pairing']:.2f}"]
    shown += [f"{r['saving']:.1%}", paper, f"{r['blocks_over_ideal']:.2f}", f"{r['waste']:.1%}"]
    shown += [f"{r['copies_per_token']:.3f}"]
    shown += [f"{r['copied_bytes_per_token'] / 1e3:.0f}", f"{r['contiguous_over_ours']:.2f}"]
    return [*shown, f"{r['reserved_over_ours']:.2f}"]


def memory_samples(results: list[Result]) -> str:
    """By how much the outputs vary, for samples that were counted without a model."""
    own = [r for r in in_order(results) if "saving_by_variation" in r and r["paper"]]
    variations = own[0]["saving_by_variation"] if own else ()
    head = ["trace", "samples", *(f"variation {v}" for v in variations), "paper, 2 to 6"]
    return table(head, map(samples_row, own))


def samples_row(r: Result) -> list[str]:
    savings = [f"{s:.1%}" for s in r["saving_by_variation"].values()]
    return [NAMES[r["trace"]], str(r["width"]), *savings, "{} to {} %".format(*r["paper"])]


def memory_blocks(results: list[Result]) -> str:
    """By block size, for width 4."""
    head = ["trace", "kind", "block size", "saving", "blocks / ideal", "waste", "tokens copied per token"]
    rows = [
        [
            NAMES[r["trace"]],
            r["kind"],
            size,
            f"{s['saving']:.1%}",
            f"{s['blocks_over_ideal']:.2f}",
            f"{s['waste']:.1%}",
            f"{s['copied_tokens_per_token']:.2f}",
        ]
        for r in in_order(results)
        if r["width"] == 4
        for size, s in r["block_sizes"].items()
    ]
    return table(head, rows)


def memory_transformers(results: list[Result]) -> str:
    head = ["beam width", "ours, peak of blocks", "peak in the process", "transformers' cache"]
    head += ["peak in the process", "cache / blocks", "peak / peak"]
    return table(head, map(transformers_row, sorted(results, key=lambda r: int(r["width"]))))


def transformers_row(r: Result) -> list[str]:
    """Records of before our process was measured have its blocks alone."""
    ours = [r["ours_peak_bytes"], r.get("ours_process_peak_bytes")]
    theirs = [r["transformers_cache_bytes"], r["transformers_peak_bytes"]]
    shown = [f"{size / 1e6:.0f} MB" if size else "" for size in (*ours, *theirs)]
    ratios = [f"{size / own:.2f}" if own else "" for size, own in zip(theirs, ours, strict=True)]
    return [str(r["width"]), *shown, *ratios]


TABLES: dict[str, tuple[str, Callable[[list[Result]], str]]] = {
    "parity": ("parity", parity),
    "memory": ("memory", memory),
    "memory_samples": ("memory", memory_samples),
    "memory_blocks": ("memory", memory_blocks),
    "memory_transformers": ("memory_transformers", memory_transformers),
    "growth": ("growth", growth),
    "growth_model": ("growth_model", growth_model),
    "latency": ("serving_latency", report_serving.latency),
    "overhead": ("serving_overhead", report_serving.overhead),
    "soak": ("serving_soak", report_serving.soak),
    "kill": ("serving_kill", report_serving.kill),
    "throughput": ("throughput", throughput),
    "alone": ("latency", report_latency.alone),
    "catalogue": ("catalogue", report_catalogue.catalogue),
    "catalogue_trie": ("catalogue", report_catalogue.trie),
    "catalogue_against": ("catalogue", report_catalogue.against),
    "catalogue_concurrent": ("catalogue", report_catalogue.concurrent),
    "score": ("score", report_engine.score),
    "engine_work": ("engine_work", report_engine.engine_work),
    "engine_options": ("engine_options", report_engine.engine_options),
    "step_profile": ("step_profile", report_engine.step_profile),
    "beam_stream": ("beam_stream", report_engine.beam_stream),
    "int8": ("int8", report_engine.int8),
    "cpu_memory": ("cpu_memory", report_cpu.memory),
    "cpu_stall": ("cpu_stall", report_cpu.stall),
    "selection": ("selection", report_kernels.selection),
    "products": ("products", report_kernels.products),
    "forest_plan": ("forest_plan", report_kernels.forest_plan),
    "control_plane": ("control_plane", report_kernels.control_plane),
    "hostile": ("hostile", report_serving.hostile),
    "hostile_sessions": ("hostile", report_serving.hostile_sessions),
    "cpu_waiting": ("cpu_waiting", report_cpu.waiting),
    "cpu_prefill": ("cpu_prefill", report_cpu.prefill),
    "cpu_attention": ("cpu_attention", report_cpu.attention),
    "layer_calls": ("layer_calls", report_cpu.layer_calls),
    "tree": ("tree", report_searches.tree),
    "grammars": ("grammars", report_searches.grammars),
    "grammars_beside": ("grammars_beside", report_searches.grammars_beside),
    "calibration": ("simulate_calibrate", calibration),
    "simulate_best": ("simulate", carried),
    "simulate_served": ("simulate", served),
    "simulate": ("simulate", simulate),
}
"""Name of a section -> the benchmark whose records it shows, and how."""
