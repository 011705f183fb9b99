"""Journals for tests: an engine on the toy model that writes one, and a way to change what one says."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forkdecode.config import EngineConfig
from forkdecode.engine.core import Engine
from forkdecode.engine.journal import Journal, Run
from forkdecode.engine.journal_file import FORMAT, MAGIC, JournalReader, frame
from forkdecode.engine.rotation import Rotation
from forkdecode.scheduler.preemption import PreemptionCost
from forkdecode.wire.records import CODEC
from tests.scheduler.engines import VOCAB
from tests.scheduler.toy import ToyRunner

START = MAGIC + FORMAT.to_bytes(4, "little")
RUN = Run(EngineConfig(), 64, 0, PreemptionCost(1.0, 1.0), b"toy", None, "0", 0.0)
"""Of an engine without a model."""


def journaled(
    path: Path,
    num_blocks: int = 4096,
    host_slots: int = 4096,
    *,
    rotation: Rotation | None = None,
    **config: Any,
) -> Engine:
    """toy_engine() that writes its journal to `path`."""
    settings = EngineConfig(**{"block_size": 4, "watermark": 0.0, **config})
    run = dataclasses.replace(
        RUN, config=settings, num_blocks=num_blocks, host_slots=host_slots, started=time.time()
    )
    runner = ToyRunner(num_blocks, settings.block_size, host_slots, VOCAB)
    return Engine(run.scheduler(), runner, Journal(path, run, rotation=rotation))


def records(path: Path) -> list[list[Any]]:
    """All records, their parts as lists and dicts that may be changed."""
    return [list(CODEC.decode(payload)) for payload in JournalReader(path)]


def rewrite(path: Path, found: list[list[Any]]) -> None:
    """A file that says `found`, with sums that agree."""
    path.write_bytes(START + b"".join(frame(CODEC.encode(tuple(record))) for record in found))


def changed(path: Path, change: Callable[[list[list[Any]]], None]) -> None:
    """Reads, changes and writes a journal."""
    found = records(path)
    change(found)
    rewrite(path, found)
