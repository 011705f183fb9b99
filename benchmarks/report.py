"""Records of benchmarks as the tables and plots of docs/performance.md and docs/capacity.md.

    python -m benchmarks.report [--records FOLDER] [--docs FOLDER] [--check] [--no-plots]
    python -m benchmarks.report --merge FILE ... [--model NAME] [--records FOLDER]

Reads records/*.jsonl; of several records of the same measurement the last counts. In both pages each
table stands between the lines `<!-- table: NAME -->` and `<!-- end -->` and is rewritten; the plots go to
docs/plots. --check writes nothing and fails where a table is not what the records say.

--merge appends what a benchmark wrote with `--record FILE` to the committed records, without the paths of
the machine in its command; nothing else is done. --model: what the model is called whose folder was given.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from benchmarks.aot_page import shown_elsewhere
from benchmarks.report_blocks import block_sizes
from benchmarks.report_claims import claims
from benchmarks.report_merge import merge
from benchmarks.report_simulate import LOAD_KEYS
from benchmarks.report_summary import summary
from benchmarks.report_tables import TABLES, Result

HERE = Path(__file__).parent
PAGES = ("performance.md", "capacity.md")
KEYS = {
    "parity": ("model", "case"),
    "memory": ("model", "trace", "kind", "width"),
    "memory_curve": ("model", "trace", "kind", "width"),
    "memory_transformers": ("model", "width"),
    "score": ("model", "dtype", "prompt", "continuations", "tokens"),
    "engine_work": ("workload",),
    "engine_options": ("option", "rows"),
    "step_profile": ("dtype", "workload"),
    "beam_stream": ("width",),
    "int8": ("model",),
    "cpu_memory": ("model",),
    "cpu_stall": ("model",),
    "selection": ("dtype", "rows", "groups", "vocab"),
    "products": ("dtype", "shape", "rows"),
    "forest_plan": ("step", "splits", "by"),
    "control_plane": ("width", "prompt", "block_size"),
    "cpu_waiting": ("model",),
    "cpu_prefill": ("model", "dtype", "prompt"),
    "cpu_attention": ("dtype", "case"),
    "layer_calls": ("dtype", "workload"),
    "tree": ("model", "dtype", "prompt", "levels", "ways", "keep", "tokens", "side"),
    "grammars": ("case", "library"),
    "grammars_beside": ("model", "case", "rows"),
    "hostile": ("requests", "seed"),
    "catalogue": ("part", "width", "block_size", "max_step_tokens", "seed"),
    "growth": ("axis", "kind"),
    "growth_model": ("model", "axis", "kind"),
    "serving_latency": ("model", "kind", "width", "tokens", "rate", "side"),
    "serving_overhead": ("model", "workload"),
    "serving_soak": ("model",),
    "serving_kill": ("model",),
    "throughput": ("dtype", "tokens", "workload", "peer"),
    "latency": ("dtype", "tokens", "workload", "peer"),
    "simulate": (*LOAD_KEYS, "system", "rate"),
    "simulate_calibrate": ("model",),
}
"""What tells one measurement of a benchmark from another, where it has it."""


def kernels(_: dict[str, list[Result]]) -> str:
    """Of the page that aot_report has written."""
    return shown_elsewhere((HERE.parent / "docs" / "kernels.md").read_text())


OF_ALL = {"summary": summary, "claims": claims, "block_sizes": block_sizes, "kernels": kernels}
"""The tables that are made of several benchmarks' records."""
SECTION = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def read(folder: Path) -> dict[str, list[Result]]:
    """Results by benchmark, in the order of the files, the last of each measurement."""
    found: dict[str, dict[Any, Result]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            full = json.loads(line)
            name, result = full["benchmark"], full["result"]
            if name in KEYS:
                found.setdefault(name, {})[tuple(result.get(k) for k in KEYS[name])] = result
    return {name: list(results.values()) for name, results in found.items()}


def filled(text: str, results: dict[str, list[Result]]) -> str:
    """The document with every table as the records say. Raises KeyError for an unknown table."""

    def fill(match: re.Match[str]) -> str:
        if match[2] in OF_ALL:
            return f"{match[1]}\n{OF_ALL[match[2]](results)}\n\n{match[3]}"
        benchmark, render = TABLES[match[2]]
        own = results.get(benchmark, [])
        body = render(own) if own else "No record yet."
        return f"{match[1]}\n{body}\n\n{match[3]}"

    return SECTION.sub(fill, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=Path, default=HERE / "records")
    parser.add_argument("--docs", type=Path, default=HERE.parent / "docs")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--model", help="of --merge")
    args = parser.parse_args()
    for file in args.merge or ():
        for name, count in merge(file, args.records, args.model).items():
            print(f"{name}: {count} records")
    if args.merge:
        return
    results = read(args.records)
    for page in (args.docs / name for name in PAGES):
        before = page.read_text()
        after = filled(before, results)
        if args.check and after != before:
            raise SystemExit(f"{page.name}: tables are not what the records say; run benchmarks.report")
        page.write_text(after)
    if not (args.check or args.no_plots):
        from benchmarks.report_plots import plots

        for path in plots(results, args.docs / "plots"):
            print(path.name)


if __name__ == "__main__":
    main()
