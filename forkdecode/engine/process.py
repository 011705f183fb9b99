"""The engine process: loads the model, runs the step loop, and ends with whoever started it.

Run as `python -m forkdecode.engine.process FD`, FD being its end of a socket pair. See wire.messages
for what is said there. The loop does not wait for the socket: the engine's thread encodes what a step
reported, hands it over, and goes on, unless the front end is so far behind that memory would run out.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path

from forkdecode.config import DEFAULT_MODEL
from forkdecode.constraints.catalogues import Catalogues
from forkdecode.cores import usable_cores
from forkdecode.engine.desk import Desk
from forkdecode.engine.heartbeat import Heartbeat
from forkdecode.engine.log import configure_logs
from forkdecode.engine.outgoing import Outgoing
from forkdecode.engine.rotation import Rotation
from forkdecode.engine.start import build_engine
from forkdecode.engine.thread import EngineThread
from forkdecode.engine.whole import Maker
from forkdecode.errors import ForkdecodeError, ModelLoadError
from forkdecode.logs import get_logger
from forkdecode.model.default_model import SMOLLM2, ensure
from forkdecode.model.loader import LoadedModel, load
from forkdecode.wire.frames import FrameReader, Outbox
from forkdecode.wire.messages import (
    Failed,
    Hello,
    Start,
)
from forkdecode.wire.records import CODEC

UNSENT_BYTES = 2**28
"""Of events that the front end has not taken: beyond that the next step waits for it."""
LAST_WORDS = 5.0
"""Seconds that an ending process gives the front end to take what was said."""
END_GRACE = 10.0
"""Seconds that a process has to end in order when the front end is gone."""
_log = get_logger(__name__)


def main(descriptor: int) -> int:
    """Serves until the front end hangs up. Returns the exit status."""
    # A terminal's Ctrl-C and a service manager's SIGTERM reach both processes: the front end decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    configure_logs(sys.stderr)
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    outbox = Outbox(sock, CODEC.schema, UNSENT_BYTES)
    serving = threading.Event()
    threading.Thread(target=_end_with_front_end, args=(sock, serving), daemon=True).start()
    try:
        _serve(FrameReader(sock, CODEC.schema), outbox, serving)
    except Exception as error:
        if not isinstance(error, ForkdecodeError):
            _log.exception("engine_start_failed")
            error = ModelLoadError(f"the engine can't start: {type(error).__name__}: {error}")
        outbox.put(CODEC.encode(Failed(error)))
        return 1
    finally:
        outbox.close(LAST_WORDS)
    return 0


def _end_with_front_end(sock: socket.socket, serving: threading.Event) -> None:
    """A process that nobody can reach any more must not live on, whatever it is at."""
    poll = select.poll()
    poll.register(sock.fileno(), getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    if serving.is_set():
        time.sleep(END_GRACE)
    os._exit(1)


def _serve(reader: FrameReader, outbox: Outbox, serving: threading.Event) -> None:
    first = reader.read()
    start = None if first is None else CODEC.decode(first)
    if not isinstance(start, Start):
        raise ValueError("the first message starts the engine")
    heart = Heartbeat(outbox, start.beat)
    try:
        _serve_model(start, reader, outbox, serving, heart)
    finally:
        heart.close()


def _serve_model(
    start: Start, reader: FrameReader, outbox: Outbox, serving: threading.Event, heart: Heartbeat
) -> None:
    loaded = load(start.model, start.dtype, start.device, max_positions=start.max_positions)
    engine, capacity = build_engine(
        loaded,
        start.config,
        start.threads or usable_cores(),
        journal=None if start.journal is None else Path(start.journal),
        rotation=None if start.journal_size is None else Rotation(start.journal_size, start.journal_keep),
        again=start.again,
    )
    hello = Hello(
        loaded.info,
        tokenizer_folder(start.model, loaded, Path(start.scratch)),
        capacity.num_blocks,
        capacity.block_size,
        capacity.bytes_per_block,
        capacity.host_slots,
    )
    outgoing = Outgoing(outbox)
    thread = EngineThread(engine, outgoing.flush)
    heart.watch(thread)
    desk = Desk(thread, outgoing, Maker(loaded, _catalogues(loaded, start)))
    serving.set()
    outbox.put(CODEC.encode(hello))
    threading.Thread(target=desk.run, args=(reader,), name="forkdecode-inbox", daemon=True).start()
    thread.wait()


def _catalogues(loaded: LoadedModel, start: Start) -> Catalogues:
    """Those that the front end serves. It has checked the files; what has become of them since must not
    keep a process from starting."""
    known = Catalogues(loaded.info.vocab_size, loaded.info.eos_ids)
    for name, path in start.catalogues:
        known.expect(name, Path(path))
    return known


def tokenizer_folder(model: str, loaded: LoadedModel, scratch: Path) -> str | None:
    """Where transformers' AutoTokenizer finds the tokenizer of what load() made of `model`: the model's
    own folder, or what is written to `scratch` for a GGUF file, which takes long to read again."""
    if loaded.tokenizer is None:
        return None
    if model == DEFAULT_MODEL:
        return str(ensure(SMOLLM2))
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path.resolve())
    snapshot = None if path.is_file() else _hub_snapshot(model)
    if snapshot is not None:
        return snapshot
    loaded.tokenizer.save_pretrained(scratch)
    return str(scratch)


def _hub_snapshot(model: str) -> str | None:
    """The folder in which the hub's files of a model that was just loaded lie."""
    from transformers.utils.hub import cached_file

    try:
        config: str | None = cached_file(model, "tokenizer_config.json", local_files_only=True)
    except OSError:
        return None
    return None if config is None else str(Path(config).parent)


if __name__ == "__main__":
    status = main(int(sys.argv[1]))
    sys.stderr.flush()
    # Threads of libraries may stand inside C++, and an interpreter that goes down around them aborts.
    os._exit(status)
