"""From a model and a configuration to a running engine."""

from __future__ import annotations

import gc
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import psutil
import torch

from forkdecode.config import EngineConfig
from forkdecode.cores import usable_cores
from forkdecode.engine.core import Engine
from forkdecode.engine.journal import Run, open_journal
from forkdecode.engine.rotation import Rotation
from forkdecode.engine.sizing import Capacity, size_pool
from forkdecode.engine.slow import told_if_slow
from forkdecode.engine.thread import EngineThread
from forkdecode.engine.trial import TRIAL_BLOCKS, flops_per_byte, step_bytes
from forkdecode.engine.update import WeightUpdates
from forkdecode.errors import CapacityError, ModelLoadError
from forkdecode.logs import get_logger
from forkdecode.model.device import current, give_back
from forkdecode.model.head import MAX_LOGITS_BYTES
from forkdecode.model.info import ModelInfo
from forkdecode.model.kv_cache import bytes_per_block
from forkdecode.model.loader import LoadedModel
from forkdecode.model.new_weights import ModelForm
from forkdecode.model.node_plans import PART_BYTES
from forkdecode.model.prepared import Preparing
from forkdecode.model.runner import Runner
from forkdecode.model.runner_settings import RunnerSettings
from forkdecode.model.support import one_line, refuse
from forkdecode.sampling.select import warm_up
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode_kernels import trie

_log = get_logger(__name__)
GRAPH_BYTES = 512 * 1024 * 1024
"""Of captured graphs themselves, whose activations are counted apart."""
WORK_BYTES = 2 * PART_BYTES + 6 * MAX_LOGITS_BYTES + GRAPH_BYTES
"""Of a GPU's memory: the partial results of attention, captured and not; logits in the model's dtype and in
float32, with what is made of them, sorts for draws among it; and graphs."""
_CPU_FLOPS_PER_BYTE = 20.0
"""FLOPs that a CPU core does in the time that it copies a byte (100 GFLOP/s over 5 GB/s)."""


@dataclass(frozen=True, slots=True)
class RunningEngine:
    """An engine in its thread, and what it was made of."""

    thread: EngineThread
    capacity: Capacity
    info: ModelInfo
    tokenizer: Any | None
    weights: WeightUpdates


def start_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    threads: int | None = None,
    journal: Path | None = None,
    is_calling: Callable[[], bool] = lambda: False,
) -> RunningEngine:
    """Allocates the KV cache and starts the engine's thread.

    threads: torch's threads; None takes the cores that this process may use. journal: a file to write
    the step journal to (see journal.py). is_calling: see EngineThread.
    Raises CapacityError when the pool does not fit, InvalidRequestError for a journal that can't be written.
    """
    cores = threads or usable_cores()
    form = ModelForm.of(loaded)  # before the engine takes the model
    engine, capacity = build_engine(loaded, config, cores, journal=journal)
    thread = EngineThread(engine, is_calling=is_calling)
    prepare = Preparing(
        getattr(torch, loaded.info.dtype), form.device, weights=config.weights, compiles=config.compile
    )
    updates = WeightUpdates(thread, form, prepare)
    return RunningEngine(thread, capacity, loaded.info, loaded.tokenizer, updates)


def build_engine(
    loaded: LoadedModel,
    config: EngineConfig,
    threads: int,
    decoder: Literal["auto", "generic"] = "auto",
    *,
    journal: Path | None = None,
    rotation: Rotation | None = None,
    again: bool = False,
) -> tuple[Engine, Capacity]:
    """An engine with its KV cache, ready for its first request. decoder: see Runner. journal: see
    start_engine; rotation: when it moves on to another file; again: see open_journal. Raises
    CapacityError, and InvalidRequestError for a journal that can't be written."""
    info, device = loaded.info, next(loaded.model.parameters()).device
    # On a GPU, too, before the runner takes the model: what can't fit is refused, and the model is whole.
    capacity = _sized(info, config, device)
    runner = _runner(loaded, config, threads, decoder, capacity)
    balance, on_gpu = _CPU_FLOPS_PER_BYTE, device.type == "cuda"
    if on_gpu:
        capacity = _resized(runner, info, config)
    _warmed(runner, info, config, threads)
    if on_gpu:
        balance = flops_per_byte(runner, info, capacity.bytes_per_block, config.max_step_tokens)
    run = Run(
        config,
        capacity.num_blocks,
        capacity.host_slots,
        PreemptionCost.of(info.num_weights, capacity.bytes_per_block, balance),
        hashlib.sha256(repr((info, config.block_size)).encode()).digest(),
        info,
        version("forkdecode"),
        time.time(),
    )
    observer = None if journal is None else open_journal(journal, run, rotation, again=again)
    return Engine(run.scheduler(), runner, observer, runner if on_gpu else None), capacity


def _sized(info: ModelInfo, config: EngineConfig, device: torch.device) -> Capacity:
    """Of the cache that the runner starts with: on a GPU that of the trial steps. Raises CapacityError."""
    on_gpu = device.type == "cuda"
    capacity = _pool(info, config, free_memory(device), on_gpu=on_gpu)
    if on_gpu:
        return Capacity(TRIAL_BLOCKS, config.block_size, capacity.bytes_per_block, 0)
    return capacity


def _pool(info: ModelInfo, config: EngineConfig, free: int, *, on_gpu: bool) -> Capacity:
    block_bytes = bytes_per_block(info, config.block_size, info.dtype)
    return size_pool(config, block_bytes, free, psutil.virtual_memory().total, on_gpu=on_gpu)


def _runner(
    loaded: LoadedModel,
    config: EngineConfig,
    threads: int,
    decoder: Literal["auto", "generic"],
    capacity: Capacity,
) -> Runner:
    settings = RunnerSettings(
        config.block_size,
        getattr(torch, loaded.info.dtype),
        next(loaded.model.parameters()).device,
        threads,
        decoder,
        weights=config.weights,
        compile=config.compile,
        batch_invariant=config.batch_invariant,
    )
    return Runner(loaded.model, loaded.info, settings, capacity.num_blocks, capacity.host_slots)


def _warmed(runner: Runner, info: ModelInfo, config: EngineConfig, threads: int) -> None:
    """Has all that is compiled ready, where kernels are. Raises ModelLoadError."""
    if runner.device.type not in ("cpu", "cuda"):
        return
    # From a cache this takes a second.
    with told_if_slow(_say_preparing):
        # The last tokens of prompts that end in a step come beyond its budget.
        _first_step(runner, info.name, 2 * config.max_step_tokens)
        _first_selections(info, runner.device, threads)


def _resized(runner: Runner, info: ModelInfo, config: EngineConfig) -> Capacity:
    """Gives a GPU's runner the cache that fits beside the model and the largest step. Raises CapacityError,
    and ModelLoadError where that step fails."""
    try:
        activations = step_bytes(runner, info, config.max_step_tokens)
    except CapacityError:
        raise
    except Exception as error:  # see _first_step
        raise refuse(info.name, f"a first step failed: {one_line(error)}") from error
    free = max(0, free_memory(runner.device) - activations)
    capacity = _pool(info, config, free, on_gpu=True)
    runner.resize(capacity.num_blocks, capacity.host_slots)
    return capacity


def _say_preparing() -> None:
    _log.info("preparing kernels (the first start on a machine compiles them, which takes a minute or two)")


def _first_step(runner: Runner, name: str, step_tokens: int) -> None:
    """Compiles the kernels and captures graphs, and is the first time that the model runs as it will. Raises
    ModelLoadError."""
    try:
        runner.warm_up(step_tokens)
    except Exception as error:  # whatever somebody's modelling code raises once its layers are repacked
        raise refuse(name, f"a first step failed: {one_line(error)}") from error


def _first_selections(info: ModelInfo, device: torch.device, threads: int) -> None:
    """Compiles what chooses tokens. Raises ModelLoadError where it can't run on the device."""
    if device.type == "cpu":
        warm_up(threads)
        trie.warm_up()
        return
    try:
        with current(device):
            warm_up(threads, device, info.vocab_size, [getattr(torch, info.dtype)])
    except Exception as error:  # whatever a compiler or driver raises
        raise ModelLoadError(
            f"device: {str(device)!r} can't be used: {one_line(error)}", field="device"
        ) from error


def free_memory(device: torch.device) -> int:
    """Bytes free for a KV cache on `device`; on a GPU without what a step's work takes beside it."""
    if device.type == "cuda":
        # What an engine that has ended, or the loading of the model, left to torch is not used by anybody.
        gc.collect()
        give_back()
        free, _ = torch.cuda.mem_get_info(device)
        return max(0, int(free) - WORK_BYTES)
    return int(psutil.virtual_memory().available)
