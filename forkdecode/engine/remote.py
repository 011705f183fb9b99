"""EngineProcess: an engine in a process of its own, which is started again when it dies. No torch here."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forkdecode.calls.one_process import ENGINE, OneProcess
from forkdecode.checks import check_int, check_unicode, shown
from forkdecode.config import DEFAULT_MODEL, MAX_THREADS, DType, EngineConfig
from forkdecode.engine.patience import Patience
from forkdecode.engine.port import Job
from forkdecode.engine.rotation import Rotation
from forkdecode.engine.sizing import Capacity
from forkdecode.engine.supervisor import EngineState, Supervisor
from forkdecode.errors import invalid
from forkdecode.model.info import ModelInfo
from forkdecode.results import EngineStats
from forkdecode.scheduler.request import DecodeRequest, TreeOp
from forkdecode.wire.messages import Start


class EngineProcess:
    """An EnginePort. Call start() first. All methods may be called from any thread.

    model, dtype, device, max_positions: see model.loader.load. threads: torch's; None takes the cores
    that the process may use. journal: a file that the process writes its step journal to; rotation:
    when it moves on to another one (forkdecode.engine.rotation). restart:
    whether a process that dies is followed by another; its running requests end with EngineClosedError
    in any case. catalogues: files by name. patience: when a process is taken to hang, which ends it like a
    crash. flush: called when the sinks have got all that a step reported, in their thread; must not block.
    An EngineProcess that nobody refers to any more ends its process. In a forked child whatever would wait
    raises UnavailableError, and all else does nothing.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        dtype: DType = "auto",
        device: str = "auto",
        threads: int | None = None,
        max_positions: int | None = None,
        config: EngineConfig | None = None,
        journal: Path | None = None,
        rotation: Rotation | None = None,
        restart: bool = True,
        catalogues: Mapping[str, Path] | None = None,
        patience: Patience | None = None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        if not isinstance(model, (str, os.PathLike)) or not os.fspath(model):
            raise invalid("model", f"{shown(model)} is no model", "a name or a folder")
        patience = patience or Patience()
        start = Start(
            model=check_unicode("model", os.fspath(model)),
            dtype=check_unicode("dtype", dtype),
            device=check_unicode("device", device),
            threads=None if threads is None else check_int("threads", threads, 1, MAX_THREADS),
            max_positions=None if max_positions is None else check_int("max_positions", max_positions, 1),
            config=config or EngineConfig(),
            scratch="",
            journal=None if journal is None else str(journal),
            catalogues=tuple((name, str(path)) for name, path in (catalogues or {}).items()),
            journal_size=None if rotation is None else rotation.size,
            journal_keep=0 if rotation is None else rotation.keep,
            beat=patience.beat,
        )
        self._home = OneProcess(ENGINE)
        self._supervisor = Supervisor(start, restart, flush, patience)
        self._thread = threading.Thread(
            target=self._supervisor.run, name="forkdecode-engine-process", daemon=True
        )
        weakref.finalize(self, _hang_up, self._home, self._supervisor)

    def start(self) -> None:
        """Starts the process and waits until it serves. Call it once.

        Raises ModelLoadError, CapacityError or InvalidRequestError when the model can't be served, and
        UnavailableError when the process ends without a word.
        """
        self._home.check()
        self._thread.start()
        try:
            self._supervisor.started.result()
        except BaseException:
            self.close()
            raise

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._supervisor.first().info

    @property
    def capacity(self) -> Capacity:
        """The block pool of the process that serves now, or did last."""
        hello = self._supervisor.latest()
        return Capacity(hello.num_blocks, hello.block_size, hello.bytes_per_block, hello.host_slots)

    @property
    def tokenizer_folder(self) -> Path | None:
        """What transformers' AutoTokenizer can open, until close(); None where there is no tokenizer."""
        folder = self._supervisor.first().tokenizer
        return None if folder is None else Path(folder)

    @property
    def pid(self) -> int | None:
        """Of the process that serves now."""
        return self._supervisor.pid

    def load_tokenizer(self) -> Any | None:
        """transformers' tokenizer of the model, or None. Imports transformers."""
        folder = self.tokenizer_folder
        if folder is None:
            return None
        from transformers import AutoTokenizer

        load: Any = AutoTokenizer.from_pretrained
        return load(str(folder), trust_remote_code=False, local_files_only=True)

    def on_state(self, heard: Callable[[EngineState], None]) -> None:
        """Calls `heard` with the state now, and at each change, in any thread; it must not block."""
        self._supervisor.on_state(heard)

    def submit(self, jobs: Sequence[Job]) -> None:
        """See EnginePort. While the process is down or starts again, UnavailableError has retry_after."""
        self._home.check()
        self._supervisor.submit(jobs)

    def cancel(self, request: DecodeRequest) -> None:
        """See EnginePort."""
        if not self._home.left:
            self._supervisor.cancel(request)

    def tree(self, op: TreeOp) -> None:
        """See EnginePort. A new process holds nothing."""
        if not self._home.left:
            self._supervisor.tree(op)

    def stats(self) -> EngineStats:
        """See EnginePort. Sums are since the process that serves now was started."""
        self._home.check()
        return self._supervisor.ask_stats().result()

    def close(self) -> None:
        """See EnginePort. The process is gone when this returns."""
        _hang_up(self._home, self._supervisor)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()


def _hang_up(home: OneProcess, supervisor: Supervisor) -> None:
    """The connection of a forked child is the parent's, which still needs it."""
    if not home.left:
        supervisor.hang_up()
