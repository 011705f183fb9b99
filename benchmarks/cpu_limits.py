"""What one engine on a CPU takes besides its products: memory, stalls, waiting, prompts.

    python -m benchmarks.cpu_limits memory | stall | waiting | prefill [--model M] [--dtype D] [--prompt N]
        [--record FILE]

memory: 16 prompts of 200 tokens, 8 samples each. Resident memory at its highest while they run, above what
the process had when its engine stood ready (interpreter, libraries, packed weights) and above the KV blocks
in use then: activations, logits, scratch space, bookkeeping.
stall: while 32 rows run, a prompt of 1,600 tokens arrives; their time between tokens in the steps that read
a chunk of 512 of it, over that of the same chunk alone and a step of the rows alone.
waiting: wall and CPU time of 16 greedy streams, two threads, with OMP_WAIT_POLICY passive and active, in
processes of their own in turn.
prefill: a prompt of --prompt tokens (1,000) read in one step, in one whose passes Python calls one by one
instead of noting them down first (forkdecode.model.lean_tape), and in chunks of 512, beside transformers' own
forward (with a cache, logits of the last token alone), in turn.

Times of stall and prefill are the thread's own CPU time, one thread, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.prompts import passage
from benchmarks.record import record

PROMPT = 1_600


class Engine:
    """An engine whose steps are taken one by one."""

    def __init__(self, model: str, threads: int, dtype: str = "auto", **settings: Any) -> None:
        from forkdecode.config import EngineConfig
        from forkdecode.engine.start import build_engine
        from forkdecode.model.kv_cache import bytes_per_block
        from forkdecode.model.loader import load
        from forkdecode.requests.resolve import Resolver

        loaded = load(model, dtype)
        config = EngineConfig(prefix_cache=False, kv_memory="1GiB", **settings)
        self.tokenizer, self._resolver = loaded.tokenizer, Resolver(loaded.tokenizer, loaded.info)
        self.engine, _ = build_engine(loaded, config, threads)
        self.block_bytes = bytes_per_block(loaded.info, config.block_size, loaded.info.dtype)
        self._number = 0
        runner: Any = self.engine._runner
        self.decoder = runner._decoder

    def submit(self, prompt: int, strategy: Any, tokens: int) -> None:
        from forkdecode import Options

        ids = passage(self.tokenizer, prompt, offset=self._number)
        options = Options(max_tokens=tokens, ignore_eos=True)
        self.engine.submit(self._resolver.resolve(ids, strategy, options, request_id=str(self._number)))
        self._number += 1

    def step(self) -> float:
        """Milliseconds of CPU time."""
        begin = time.thread_time()
        self.engine.step()
        return (time.thread_time() - begin) * 1e3

    def prefill_step(self) -> tuple[float, int]:
        """The same of a step, and how many prompt tokens it read."""
        before = self.engine.stats().prefill_tokens
        spent = self.step()
        return spent, self.engine.stats().prefill_tokens - before

    def finish(self) -> None:
        while self.engine.has_work:
            self.engine.step()


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(model: str) -> dict[str, Any]:
    from forkdecode import Sample

    run = Engine(model, 1)
    ready, beyond, kv = resident(), 0, 0
    for i in range(16):
        run.submit(200, Sample(8, temperature=0.8, top_p=0.95, seed=i), 48)
    while run.engine.has_work:
        run.engine.step()
        # Blocks that were ever written stay resident, so the most that were in use count.
        kv = max(kv, run.engine.stats().used_blocks * run.block_bytes)
        beyond = max(beyond, resident() - ready - kv)
    return {"ready_mb": ready / 1e6, "kv_mb": kv / 1e6, "beyond_mb": beyond / 1e6}


def stall(model: str) -> dict[str, Any]:
    from forkdecode import Greedy, Sample

    chunk = 512
    alone = Engine(model, 1, max_step_tokens=chunk)
    alone.submit(PROMPT, Greedy(), 1)
    by_itself = chunks(alone, chunk)
    run = Engine(model, 1, max_prefill_tokens=chunk)
    for i in range(4):
        run.submit(100, Sample(8, seed=i), 24)
    for _ in range(4):
        run.step()
    decode = statistics.median(run.step() for _ in range(6))
    run.submit(PROMPT, Greedy(), 1)
    beside = chunks(run, chunk)
    ratios = [b / (a + decode) for a, b in zip(by_itself, beside, strict=True)]
    return {"decode_ms": decode, "chunk_ms": by_itself, "between_tokens_ms": beside, "over_both": ratios}


def chunks(run: Engine, chunk: int) -> list[float]:
    """Milliseconds of each step that reads a whole chunk of a prompt."""
    spent = []
    while run.engine.has_work:
        milliseconds, read = run.prefill_step()
        spent += [milliseconds] if read == chunk else []
    return spent


def prefill(model: str, dtype: str = "float32", prompt: int = 1000) -> dict[str, Any]:
    import torch
    from transformers import AutoModelForCausalLM

    from forkdecode import Greedy
    from forkdecode.config import DEFAULT_MODEL
    from forkdecode.model.default_model import SMOLLM2, ensure

    torch.set_num_threads(1)
    folder = ensure(SMOLLM2) if model == DEFAULT_MODEL else model
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
    whole, cut = (Engine(model, 1, dtype, max_prefill_tokens=most) for most in (1024, 512))
    ids = torch.tensor([passage(whole.tokenizer, prompt)])
    tape = getattr(whole.decoder, "_taped", None)

    def read(run: Engine) -> None:
        run.submit(prompt, Greedy(), 1)
        run.finish()

    def one_by_one() -> None:
        whole.decoder._taped = None
        read(whole)
        whole.decoder._taped = tape

    @torch.inference_mode()
    def forward() -> None:
        theirs(ids, use_cache=True, logits_to_keep=1)

    ways = {"one step": lambda: read(whole), "forward": forward}
    if prompt > 512:
        ways["chunks of 512"] = lambda: read(cut)
    if tape is not None:
        ways["pass by pass"] = one_by_one
    spent = taken_in_turn(ways, 5)
    ours = ("one step", "chunks of 512")
    return {**spent, "speed": {name: spent["forward"] / spent[name] for name in ours if name in spent}}


def taken_in_turn(ways: dict[str, Callable[[], Any]], times: int) -> dict[str, float]:
    """Median milliseconds of each, all of them in turn after a warm-up."""
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(times + 1):
        for name, run in ways.items():
            begin = time.thread_time()
            run()
            if turn:
                seen[name].append((time.thread_time() - begin) * 1e3)
    return {name: statistics.median(spent) for name, spent in seen.items()}


def waiting(model: str) -> dict[str, Any]:
    seen: dict[str, list[tuple[float, float]]] = {"passive": [], "active": []}
    for _ in range(3):
        for policy, runs in seen.items():
            command = [sys.executable, "-m", "benchmarks.cpu_limits", "greedy", "--model", model]
            environment = {**os.environ, "OMP_WAIT_POLICY": policy}
            environment.pop("OMP_NUM_THREADS", None)
            out = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
            found = json.loads(out.splitlines()[-1])
            runs.append((found["wall"], found["cpu"]))
    by = {
        policy: [statistics.median(column) for column in zip(*runs, strict=True)]
        for policy, runs in seen.items()
    }
    return {**by, "active_over_passive": [a / p for a, p in zip(by["active"], by["passive"], strict=True)]}


def greedy(model: str) -> dict[str, Any]:
    """Milliseconds a step of 16 greedy streams, by the wall and of all threads' CPU time."""
    from forkdecode import Greedy

    run = Engine(model, 2)
    for _ in range(16):
        run.submit(64, Greedy(), 24)
    for _ in range(4):
        run.step()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(16):
        run.step()
    return {"wall": (time.perf_counter() - wall) * 62.5, "cpu": (time.process_time() - cpu) * 62.5}


PARTS: dict[str, Callable[..., dict[str, Any]]] = {
    "memory": memory,
    "stall": stall,
    "waiting": waiting,
    "greedy": greedy,
    "prefill": prefill,
}
SEEDS = {"memory": 0, "stall": 0}
"""Of the parts that draw; where there are requests, the first one's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--dtype", default="float32", help="of prefill")
    parser.add_argument("--prompt", type=int, default=1000, help="tokens of prefill's (1,000)")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    given = {"dtype": args.dtype, "prompt": args.prompt} if args.part == "prefill" else {}
    found = PARTS[args.part](args.model, **given)
    if args.record:
        settings = {"model": Path(args.model).name, "seed": SEEDS.get(args.part), **given}
        record(f"cpu_{args.part}", settings | found, args.record)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
