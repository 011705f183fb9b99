"""What the step journal costs: the share of a step that goes into recording it.

    python -m benchmarks.journal_cost [--model M] [--dtype D] [--threads N] [--steps N] [--record FILE]

64 rows: 16 requests of 4 samples, beams or beams with a stop text and a penalty, each on a prompt of its
own. One engine; CPU time of its thread inside the journal's methods over that of whole steps, and the
CPU time of the thread that writes, after the prompts are read. CPU time, so that what else the machine
does counts for neither.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.prompts import passage
from benchmarks.record import record

REQUESTS, WIDTH = 16, 4


class Timed:
    """An observer that adds up the time of another one."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spent = 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def timed(*args: Any) -> Any:
            begin = time.thread_time()
            try:
                return method(*args)
            finally:
                self.spent += time.thread_time() - begin

        return timed


def requests(maker: Any, tokenizer: Any, strategy: Any, options: dict[str, Any], steps: int) -> list[Any]:
    """Resolved requests that all decode for at least `steps` steps."""
    found = []
    for i in range(REQUESTS):
        prompt = passage(tokenizer, 64 + 4 * i, offset=i)
        given = {"max_tokens": steps + 64, "ignore_eos": True, **options}
        prepared = maker.prepare(prompt, strategy, None, given, chat=False, request_id=f"r{i}", stream=True)
        found.append(prepared.request)
    return found


class Bench:
    """One engine that writes a journal to `path`."""

    def __init__(self, loaded: Any, threads: int, path: Path) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.requests.prepare import RequestMaker

        config = EngineConfig(num_blocks=2048, prefix_cache=False)
        self.engine, _ = build_engine(loaded, config, threads, journal=path)
        self.tokenizer = loaded.tokenizer
        self._timed = Timed(self.engine._observer)
        self.engine._observer = self._timed
        self._maker = RequestMaker(loaded.tokenizer, loaded.info)
        self._path = path

    def measure(self, strategy: Any, options: dict[str, Any], steps: int) -> dict[str, float]:
        """Medians over `steps` steps in which all rows decode. Times in milliseconds."""
        engine, timed = self.engine, self._timed
        for request in requests(self._maker, self.tokenizer, strategy, options, steps):
            engine.submit(request)
        while engine.stats().running_rows < REQUESTS * WIDTH:
            engine.step()
        size, others = self._path.stat().st_size, time.process_time() - time.thread_time()
        totals, costs = [], []
        for _ in range(steps):
            before, begin = timed.spent, time.thread_time()
            engine.step()
            totals.append(time.thread_time() - begin)
            costs.append(timed.spent - before)
        others = time.process_time() - time.thread_time() - others
        size = self._path.stat().st_size - size
        for i in range(REQUESTS):
            engine.cancel(f"r{i}")
        return {
            "step_ms": 1000 * statistics.median(totals),
            "journal_ms": 1000 * statistics.median(costs),
            "share": statistics.median(c / t for c, t in zip(costs, totals, strict=True)),
            "other_threads_share": others / sum(totals),
            "bytes_a_step": size / steps,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument(
        "--threads", type=int, default=1, help="1, or other threads' share is not the writer's"
    )
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    import torch

    from forkdecode import Beam, Sample
    from forkdecode.config import DEFAULT_MODEL
    from forkdecode.model.loader import load

    torch.set_num_threads(args.threads)
    loaded = load(args.model or DEFAULT_MODEL, args.dtype, "cpu")
    stop: dict[str, Any] = {"stop": ["\n\n", "xyz"], "repetition_penalty": 1.1}
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(loaded, args.threads, Path(folder) / "journal")
        for name, strategy, options in [
            ("16 x 4 samples", Sample(n=WIDTH, seed=1), {}),
            ("16 x beam of 4", Beam(width=WIDTH), {}),
            ("16 x beam of 4, stop texts, penalty", Beam(width=WIDTH), stop),
        ]:
            found = results[name] = bench.measure(strategy, options, args.steps)
            print(
                f"{name}: step {found['step_ms']:.1f} ms, journal {found['journal_ms']:.2f} ms = "
                f"{found['share']:.2%}; writer {found['other_threads_share']:.2%}; "
                f"{found['bytes_a_step']:,.0f} bytes a step",
                flush=True,
            )
        bench.engine.close()
    if args.record:
        record("journal_cost", results, args.record)


if __name__ == "__main__":
    main()
