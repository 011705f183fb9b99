"""The flags of `serve` beside the engine's. Each has its default from the record that it is a field of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from forkdecode.cli.flags import Flags
from forkdecode.engine.patience import Patience
from forkdecode.engine.rotation import Rotation
from forkdecode.errors import InvalidRequestError
from forkdecode.server.settings import ServerSettings, TreeSettings

T = TypeVar("T")
SERVER_FLAGS: Flags = {
    "listen": (str, "host:port (port 0: a free one) or unix:/path."),
    "metrics_listen": (str, "host:port for Prometheus metrics; off by default."),
    "journal": (Path, "Record every step in this file, for `forkdecode replay`."),
    "journal_size": (
        str,
        "Size, such as 1GiB, at which the journal continues in another file; off by default.",
    ),
    "journal_keep": (int, "Older journal files kept in addition to the newest."),
    "tls_cert": (Path, "PEM file of the server's certificate chain."),
    "tls_key": (Path, "PEM file of the server's private key."),
    "tls_client_ca": (Path, "PEM file of a CA: every client must have a certificate signed by it."),
    "tokens": (Path, "TOML or .json file of bearer tokens and their limits."),
    "insecure_public": (bool, "Serve an address that others can reach without TLS or tokens."),
    "max_requests": (int, "Concurrent calls; more are refused with a retry delay."),
    "max_request_size": (str, "The largest size of a request, as it is sent."),
    "stall_timeout": (
        float,
        "Seconds after which a reader to which nothing more can be sent is disconnected.",
    ),
    "grace": (float, "Seconds that running requests get to finish at shutdown."),
    "engine_timeout": (float, "Seconds without a heartbeat before the engine is restarted."),
    "step_timeout": (float, "Seconds that one step may take before the engine is restarted."),
    "max_sessions": (int, "Concurrent tree sessions; 0: none."),
    "tree_grace": (float, "Seconds for which a tree session is kept after its connection is lost."),
    "tree_idle": (float, "Seconds after which an unused tree session is ended."),
    "log_prompts": (bool, "Log the text of prompts."),
}
SERVER_FIELDS: Mapping[str, tuple[type, str]] = {
    **{name: (ServerSettings, name) for name in ("listen", "max_requests", "stall_timeout")},
    **{name: (ServerSettings, name) for name in ("insecure_public", "log_prompts")},
    "max_request_size": (ServerSettings, "max_request_bytes"),
    "max_sessions": (TreeSettings, "max_sessions"),
    "tree_grace": (TreeSettings, "grace"),
    "tree_idle": (TreeSettings, "idle"),
    "engine_timeout": (Patience, "silence"),
    "step_timeout": (Patience, "step"),
    "journal_size": (Rotation, "size"),
    "journal_keep": (Rotation, "keep"),
}
"""The record that a flag of a server is a field of, where it has its default and is checked."""
DEFAULT_GRACE = 30.0
"""Of `grace`, which is of no record."""


def server_parameters() -> list[inspect.Parameter]:
    """What typer makes the flags of."""
    return [_parameter(name, *spec) for name, spec in SERVER_FLAGS.items()]


def default_of(name: str) -> Any:
    """A server's flag that is not given: as its record has it, None where it has none."""
    if name == "grace":
        return DEFAULT_GRACE
    if name not in SERVER_FIELDS:
        return None
    owner, field = SERVER_FIELDS[name]
    (default,) = (one.default for one in fields(owner) if one.name == field)
    if default is MISSING:
        return None
    return f"{default // 2**20}MiB" if name == "max_request_size" else default


def record_of(kind: type[T], flags: Mapping[str, Any], **others: Any) -> T:
    """A record of what the flags of a server say. Raises InvalidRequestError naming the flag at fault."""
    names = {field: flag for flag, (owner, field) in SERVER_FIELDS.items() if owner is kind}
    try:
        return kind(**{field: flags[flag] for field, flag in names.items()}, **others)
    except InvalidRequestError as error:
        field = error.field or ""
        flag = names.get(field, field)
        text = f"{flag}{str(error).removeprefix(field)}"
        raise InvalidRequestError(text, field=flag, limit=error.limit) from error


def _parameter(name: str, kind: Any, text: str) -> inspect.Parameter:
    default = default_of(name)
    option = typer.Option(f"--{name.replace('_', '-')}", help=text)
    annotation = Annotated[kind, option] if default is not None else Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
