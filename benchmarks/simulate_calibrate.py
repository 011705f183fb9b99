"""The simulator's roofline against real steps: a real model on this machine's CPU, predicted and measured.

    python -m benchmarks.simulate_calibrate [--model M] [--steps N] [--record FILE]

The machine's bandwidth (a large copy) and arithmetic (a large float32 matrix product) are measured first,
on one thread as all that follows; then decode steps of the workloads of benchmarks.throughput run, and
steps that read a prompt of 512 tokens, and the cost model says from each plan what it should have taken.
ratio: measured over predicted, the median of each workload. spread: how far the workloads' ratios are from
their geometric mean: what is left when the accelerator's two speeds are known. Times are the thread's CPU
time, as other programs may run.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.workloads import SEED, TEMPERATURE, TOP_P, WORKLOADS, Workload
from benchmarks.prompts import passage
from benchmarks.record import record
from benchmarks.simulate_cost import Accelerator, CostModel, ModelShape, StepWork, prompt_work
from forkdecode.step import StepPlan
from forkdecode.types import Beam, Greedy, Options, Sample, Strategy

CHUNK = 64 << 20
"""Float32 values of the copy: far more than caches hold."""
MATRIX = 1024
PREFILL, PROMPTS = "prefill512", 5
"""The workload that reads this many prompts, each in a step of its own."""
PROMPT_TOKENS = 512


def best_seconds(work: Callable[[], Any], times: int = 5) -> float:
    """Least CPU time of this thread."""
    found = []
    for _ in range(times):
        begin = time.thread_time()
        work()
        found.append(time.thread_time() - begin)
    return min(found)


def this_machine() -> Accelerator:
    """One thread of it, in float32."""
    import torch

    source, target = torch.ones(CHUNK), torch.empty(CHUNK)
    a, b = torch.randn(MATRIX, MATRIX), torch.randn(MATRIX, MATRIX)
    bandwidth = 2 * 4 * CHUNK / best_seconds(lambda: target.copy_(source))
    flops = 2 * MATRIX**3 / best_seconds(lambda: a @ b)
    return Accelerator("this machine", bandwidth, flops, memory=0.0, link=0.0, latency=0.0)


def shape_of(config: Any) -> ModelShape:
    """A transformers config of Llama's family, in float32."""
    return ModelShape(
        "calibrated",
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        config.intermediate_size,
        config.vocab_size,
        config.tie_word_embeddings,
        element_bytes=4,
    )


def work_of(plan: StepPlan, block_size: int) -> StepWork:
    """A step on the CPU path: trunks are read once, tails by row."""
    row_tokens = sum(d.rows * d.context_len for d in plan.decodes)
    read = sum(
        len(d.trunk) * block_size + d.rows * (d.context_len - len(d.trunk) * block_size) for d in plan.decodes
    )
    rows = sum(d.rows for d in plan.decodes)
    copied = len(plan.copies) * block_size
    decoding = StepWork(rows, len(plan.logits_index), read, row_tokens, copied_tokens=copied)
    return decoding + prompt_work(plan.segments)


class Calibration:
    def __init__(self, model: str) -> None:
        import torch

        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        torch.set_num_threads(1)
        loaded = load(model, "float32")
        config = EngineConfig(prefix_cache=False, num_blocks=4096, swap_memory=0)
        self._block_size = config.block_size
        self._tokenizer = loaded.tokenizer
        self._resolver = Resolver(loaded.tokenizer, loaded.info)
        self._engine, _ = build_engine(loaded, config, 1)
        self.machine = this_machine()
        self._cost = CostModel(self.machine, shape_of(loaded.model.config))

    def run(self, work: Workload, steps: int) -> dict[str, Any]:
        """Medians over the steps in which every row decodes and no prompt is read."""
        self._submit(work, steps + 8)
        rows = work.rows * len(work.lengths)
        found = self._steps(lambda plan: not plan.segments and len(plan.logits_index) == rows)
        return {"workload": work.name, "rows": rows, **medians(found)}

    def prefill(self) -> dict[str, Any]:
        """Medians over steps that read a prompt each, and nothing else."""
        found = []
        for number in range(PROMPTS):
            self._ask(str(number), PROMPT_TOKENS, number, Greedy(), Options(max_tokens=1))
            found += self._steps(lambda plan: len(plan.token_ids) == PROMPT_TOKENS)
        return {"workload": PREFILL, "rows": PROMPT_TOKENS, **medians(found)}

    def _steps(self, wanted: Callable[[StepPlan], bool]) -> list[tuple[float, float]]:
        """Runs all that was asked for; the seconds that each wanted step took, and should have."""
        scheduler, runner = self._engine.scheduler, self._engine._runner
        assert runner is not None
        found = []
        while self._engine.has_work:
            plan = scheduler.schedule()
            assert plan is not None
            begin = time.thread_time()
            output = runner.execute(plan)
            spent = time.thread_time() - begin
            if wanted(plan):
                found.append((spent, self._cost.seconds(work_of(plan, self._block_size)).total))
            scheduler.commit(output)
        return found

    def _submit(self, work: Workload, tokens: int) -> None:
        strategy: Any = {
            "beam": lambda: Beam(work.rows),
            "sample": lambda: Sample(work.rows, temperature=TEMPERATURE, top_p=TOP_P, seed=SEED),
            "greedy": Greedy,
        }[work.kind]()
        for i, length in enumerate(work.lengths):
            self._ask(str(i), length, i, strategy, Options(max_tokens=tokens, ignore_eos=True))

    def _ask(self, name: str, length: int, offset: int, strategy: Strategy, options: Options) -> None:
        prompt = passage(self._tokenizer, length, offset=offset)
        self._engine.submit(self._resolver.resolve(prompt, strategy, options, request_id=name, stream=False))


def medians(steps: list[tuple[float, float]]) -> dict[str, float]:
    """Of steps' measured and predicted seconds, in milliseconds, and their ratio."""
    measured, predicted = (1e3 * statistics.median(column) for column in zip(*steps, strict=True))
    return {"measured_ms": measured, "predicted_ms": predicted, "ratio": measured / predicted}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The workloads' geometric mean ratio, and the largest factor that one of them is away from it."""
    logs = [math.log(r["ratio"]) for r in rows]
    mean = statistics.fmean(logs)
    return {"mean_ratio": math.exp(mean), "spread": math.exp(max(abs(x - mean) for x in logs))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--steps", type=int, default=24)
    names = [*(w.name for w in WORKLOADS), PREFILL]
    parser.add_argument("--workload", nargs="*", choices=names, default=names)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    calibration = Calibration(args.model)
    works = {w.name: w for w in WORKLOADS}
    rows = []
    for name in args.workload:
        r = calibration.prefill() if name == PREFILL else calibration.run(works[name], args.steps)
        rows.append(r)
        print(
            f"{r['workload']:14s} {r['rows']:4d} tokens  measured {r['measured_ms']:7.1f} ms  "
            f"predicted {r['predicted_ms']:7.1f} ms  ratio {r['ratio']:.2f}",
            flush=True,
        )
    found = {
        "model": Path(args.model).name,
        "seed": SEED,
        "bandwidth": calibration.machine.bandwidth,
        "flops": calibration.machine.flops,
        "workloads": rows,
        **summary(rows),
    }
    record("simulate_calibrate", found, args.record)


if __name__ == "__main__":
    main()
