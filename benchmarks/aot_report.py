"""Compiles every kernel that ships for GPUs that need not be here, and says what each one takes.

    python benchmarks/aot_report.py [--targets sm_90 gfx942] [--quick] [--json F]
        [--markdown docs/kernels.md [--also F ...]]

Fails where a kernel spills registers, needs more shared memory than the target gives a program, or moves
bulk data without 16-byte loads, or with some of less than 4 bytes. Runs with any Triton that is installed;
--also names what others have written with --json, whose configurations and faults the page counts too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

# Explicit, since Triton 3.10 turns it off by default.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
if os.environ.get("TRITON_INTERPRET", "0") == "1":
    sys.exit("TRITON_INTERPRET is set: nothing would be compiled. Unset it.")

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.aot_config import Config
from benchmarks.aot_configs import shipped
from benchmarks.aot_page import markdown, page
from benchmarks.aot_targets import TARGETS, Target, Usage, usage


def compile_for(config: Config, target: Target) -> Usage:
    """One configuration, compiled."""
    names = config.kernel.arg_names
    source = ASTSource(
        config.kernel,
        config.signature(),
        {(names.index(name),): value for name, value in config.constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in config.hinted()},
    )
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    if config.registers is not None and target.backend == "cuda":
        options["maxnreg"] = config.registers
    compiled = triton.compile(
        source, target=GPUTarget(target.backend, target.arch, target.warp_size), options=options
    )
    return usage(compiled, target, config.num_warps)


def faults(config: Config, target: Target, used: Usage) -> list[str]:
    """What must not be in a shipped configuration."""
    found = []
    if used.spills:
        found.append(f"spills {used.spills}")
    if used.shared > target.shared_limit:
        found.append(f"{used.shared} bytes of shared memory, {target.shared_limit} allowed")
    if config.wide and not used.wide:
        found.append("no 16-byte loads")
    # A sink is one element a head, and not bulk data.
    if config.wide and used.narrow and not config.constants.get("SINKS"):
        found.append(f"{used.narrow} loads of less than 4 bytes")
    return found


def report(targets: Iterable[Target], quick: bool) -> list[dict[str, Any]]:
    """One record a configuration and target."""
    records = []
    for target in targets:
        for config in shipped(target.family, quick=quick):
            used = compile_for(config, target)
            fault = faults(config, target, used)
            records.append(
                {"target": target.name, "kernel": config.name, "num_warps": config.num_warps}
                | asdict(used)
                | {"faults": fault}
            )
            print(target.name, config.name, *fault, file=sys.stderr, flush=True)
    return records


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--targets", nargs="+", choices=[t.name for t in TARGETS], help="default: all")
    parser.add_argument("--quick", action="store_true", help="a few configurations of each target")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--also", type=Path, nargs="+", default=[])
    args = parser.parse_args()
    records = report([t for t in TARGETS if not args.targets or t.name in args.targets], args.quick)
    document = {"triton": triton.__version__, "records": records}
    if args.json:
        args.json.write_text(json.dumps(document, indent=1) + "\n")
    if args.markdown:
        others = [json.loads(file.read_text()) for file in args.also]
        args.markdown.write_text(page([document, *others]))
    print(markdown(records))
    return int(any(r["faults"] for r in records))


if __name__ == "__main__":
    sys.exit(main())
