"""`forkdecode serve`: an engine process and the server before it, until a signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from forkdecode.checks import check_float, keep
from forkdecode.cli.flags import given
from forkdecode.cli.run import INTERRUPTED
from forkdecode.cli.server_flags import SERVER_FLAGS, record_of
from forkdecode.config import DEFAULT_MODEL, EngineConfig, parse_bytes
from forkdecode.constraints.catalogue_file import open_catalogue
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.engine.log import configure_logs, json_logger
from forkdecode.engine.patience import Patience
from forkdecode.engine.remote import EngineProcess
from forkdecode.engine.rotation import Rotation
from forkdecode.errors import invalid
from forkdecode.server.app import Server
from forkdecode.server.auth import OPEN
from forkdecode.server.backend import Backend, StepBell
from forkdecode.server.metrics import Metrics, MetricsServer
from forkdecode.server.settings import ServerSettings, TreeSettings
from forkdecode.server.tls import tls_files
from forkdecode.server.token_file import TokenFile

_PROCESS_FLAGS = ("model", "dtype", "device", "threads", "max_positions")


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What the flags ask for. engine: the engine's flags that were given. grace: seconds that running
    requests get to finish once the server is told to stop. token_file: what settings.tokens are from."""

    engine: Mapping[str, Any]
    settings: ServerSettings
    metrics_listen: str | None
    grace: float
    patience: Patience
    journal: Path | None
    rotation: Rotation | None
    token_file: TokenFile | None

    def __post_init__(self) -> None:
        keep(self, "grace", check_float, 0.0, 1e6)
        # What is wrong is said before a model is loaded.
        self.settings.address()
        for path in self.catalogues.values():
            open_catalogue(path)
        if self.journal is not None:
            check_writable("journal", self.journal)

    @property
    def catalogues(self) -> Mapping[str, Path]:
        """Their files, by name."""
        found: Mapping[str, Path] = self.engine.get("catalogues", {})
        return found

    def engine_process(self, bell: StepBell) -> EngineProcess:
        """The engine, not started yet. Raises InvalidRequestError for a wrong flag."""
        process = {name: value for name, value in self.engine.items() if name in _PROCESS_FLAGS}
        config = {
            name: value
            for name, value in self.engine.items()
            if name not in _PROCESS_FLAGS and name != "catalogues"
        }
        return EngineProcess(
            **process,
            config=EngineConfig(**config),
            journal=self.journal,
            rotation=self.rotation,
            patience=self.patience,
            catalogues=self.catalogues,
            flush=bell.ring,
        )


def plan_of(flags: Mapping[str, Any]) -> ServePlan:
    """What the flags of the command ask for. Raises InvalidRequestError naming the one at fault."""
    own = {name: flags[name] for name in SERVER_FLAGS}
    own["max_request_size"] = parse_bytes("max_request_size", own["max_request_size"])
    token_file = None if own["tokens"] is None else TokenFile(own["tokens"])
    settings = record_of(
        ServerSettings,
        own,
        tls=tls_files(own["tls_cert"], own["tls_key"], own["tls_client_ca"]),
        tokens=OPEN if token_file is None else token_file.book,
        trees=record_of(TreeSettings, own),
    )
    return ServePlan(
        given({name: value for name, value in flags.items() if name not in SERVER_FLAGS}),
        settings,
        own["metrics_listen"],
        own["grace"],
        record_of(Patience, own),
        own["journal"],
        _rotation(own),
        token_file,
    )


def _rotation(own: Mapping[str, Any]) -> Rotation | None:
    """None where no size is given; how many files are kept is checked all the same."""
    text = own["journal_size"]
    size = 1 if text is None else parse_bytes("journal_size", text)
    made = record_of(Rotation, {**own, "journal_size": size})
    if text is not None and own["journal"] is None:
        raise invalid("journal_size", "there is no journal", "together with journal")
    return None if text is None else made


def check_writable(name: str, path: Path) -> None:
    """Raises InvalidRequestError for a file that could not be written."""
    problem = None
    if path.is_dir():
        problem = "is a folder"
    elif not path.parent.is_dir():
        problem = f"can't be written: there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "can't be written: permission denied"
    if problem is not None:
        raise invalid(name, f"{path} {problem}", "a file that can be written, in a folder that is there")


def serve_until_told(plan: ServePlan) -> int:
    """Serves until SIGTERM or SIGINT. The exit code: 0 after a clean end, 130 after a second signal, or
    one before the server was ready."""
    configure_logs(sys.stderr)
    _forgo_torch()
    return asyncio.run(_serve(plan))


def _forgo_torch() -> None:
    """The model is in the engine process. Here transformers is asked for a tokenizer alone, but would
    import torch because it is installed: seconds, and 240 MB."""
    if "torch" not in sys.modules:
        sys.modules["torch"] = None  # type: ignore[assignment]
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


async def _serve(plan: ServePlan) -> int:
    log = json_logger(sys.stderr)
    signals = _Signals()
    metrics = Metrics() if plan.metrics_listen is not None else None
    server = Server(plan.settings, log, metrics)
    bell = StepBell()
    engine = plan.engine_process(bell)
    port: MetricsServer | None = None
    tokens: asyncio.Future[None] | None = None
    try:
        address = server.bind()
        if plan.token_file is not None:
            tokens = asyncio.ensure_future(plan.token_file.watch(signals.reload, log))
        if metrics is not None and plan.metrics_listen is not None:
            port = metrics.start_http(plan.metrics_listen)
        await server.open()
        log.info("loading", model=str(plan.engine.get("model", DEFAULT_MODEL)), listen=str(address))
        if not await signals.before(asyncio.to_thread(engine.start)):
            return INTERRUPTED
        tokenizer = await asyncio.to_thread(engine.load_tokenizer)
        catalogues = Catalogues(engine.info.vocab_size, engine.info.eos_ids, engine.info.name)
        await asyncio.to_thread(catalogues.put_all, plan.catalogues)
        backend = Backend(engine, engine.info, engine.capacity, tokenizer, engine.on_state, bell, catalogues)
        await server.start(backend)
        _say_ready(log, engine, str(address), None if port is None else port.address)
        await signals.first.wait()
        finished = await signals.before(server.drain(plan.grace), second=True)
        return 0 if finished else INTERRUPTED
    finally:
        if tokens is not None:
            tokens.cancel()
        await server.stop()
        await asyncio.to_thread(engine.close)
        if port is not None:
            port.close()


def _say_ready(log: Any, engine: EngineProcess, address: str, metrics: str | None) -> None:
    also = f", metrics on {metrics}" if metrics else ""
    info = engine.info
    log.info("ready", model=info.name, dtype=info.dtype, listen=address, capacity=str(engine.capacity))
    typer.echo(f"ready: {info.name} ({info.dtype}) on {address}{also}")
    sys.stdout.flush()


class _Signals:
    """SIGTERM and SIGINT as events: the first asks for a clean end, the second for one at once. SIGHUP asks
    for files to be read again."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self._second = asyncio.Event()
        self.reload = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)
        loop.add_signal_handler(signal.SIGHUP, self.reload.set)

    def _hear(self) -> None:
        (self._second if self.first.is_set() else self.first).set()

    async def before(self, work: Awaitable[Any], *, second: bool = False) -> bool:
        """Waits for `work` or a signal, and raises what `work` does; False if the signal came first."""
        heard = asyncio.ensure_future((self._second if second else self.first).wait())
        task = asyncio.ensure_future(work)
        await asyncio.wait([heard, task], return_when=asyncio.FIRST_COMPLETED)
        heard.cancel()
        if task.done():
            task.result()
            return True
        task.cancel()
        return False
