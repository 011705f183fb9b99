"""`forkdecode serve`: its flags. What it does is in serve.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from forkdecode.cli.flags import ENGINE_FLAGS, Debug, given, with_flags


@with_flags(ENGINE_FLAGS)
def serve(
    listen: Annotated[
        str, typer.Option("--listen", help="host:port (port 0: a free one), or unix:/path.")
    ] = "127.0.0.1:50051",
    metrics_listen: Annotated[
        str | None, typer.Option("--metrics-listen", help="host:port for Prometheus; none by default.")
    ] = None,
    journal: Annotated[
        Path | None, typer.Option("--journal", help="Write every step to this file, for `replay`.")
    ] = None,
    journal_size: Annotated[
        str | None,
        typer.Option(
            "--journal-size", help="At which the journal moves on to another file; never by default."
        ),
    ] = None,
    journal_keep: Annotated[
        int, typer.Option("--journal-keep", help="Files of the journal that are kept besides the newest.")
    ] = 4,
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", help="The server's certificate chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its private key, PEM.")] = None,
    tls_client_ca: Annotated[
        Path | None,
        typer.Option("--tls-client-ca", help="Clients must show a certificate signed by this one, PEM."),
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option("--tokens", help="TOML or .json file of bearer tokens and their limits.")
    ] = None,
    insecure_public: Annotated[
        bool,
        typer.Option("--insecure-public", help="Serve other machines without TLS or without known callers."),
    ] = False,
    max_requests: Annotated[int, typer.Option("--max-requests", help="Calls at a time.")] = 1024,
    max_request_size: Annotated[
        str, typer.Option("--max-request-size", help="Of one request, as it is sent.")
    ] = "4MiB",
    stall_timeout: Annotated[
        float, typer.Option("--stall-timeout", help="Seconds until a reader that takes nothing is ended.")
    ] = 60.0,
    grace: Annotated[
        float, typer.Option("--grace", help="Seconds that running requests get after SIGTERM.")
    ] = 30.0,
    engine_timeout: Annotated[
        float,
        typer.Option("--engine-timeout", help="Seconds of silence after which the engine is restarted."),
    ] = 30.0,
    step_timeout: Annotated[
        float, typer.Option("--step-timeout", help="Seconds of one step after which the engine is restarted.")
    ] = 600.0,
    max_sessions: Annotated[int, typer.Option("--max-sessions", help="Tree sessions at a time.")] = 256,
    tree_grace: Annotated[
        float, typer.Option("--tree-grace", help="Seconds that a tree session without a connection is kept.")
    ] = 60.0,
    tree_idle: Annotated[
        float, typer.Option("--tree-idle", help="Seconds until an unused tree session is ended.")
    ] = 3600.0,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts to the log.")] = False,
    debug: Debug = False,
    **flags: Any,
) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C; a second one ends at once."""
    # Read when grpc is imported. What it would write to stderr is no line of our log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from forkdecode.cli.serve import ServePlan, patience, request_bytes, rotation, serve_until_told
    from forkdecode.server.app import ServerSettings
    from forkdecode.server.auth import OPEN
    from forkdecode.server.tls import tls_files
    from forkdecode.server.token_file import TokenFile
    from forkdecode.server.trees import TreeSettings

    token_file = None if tokens is None else TokenFile(tokens)
    settings = ServerSettings(
        listen=listen,
        max_requests=max_requests,
        max_request_bytes=request_bytes(max_request_size),
        stall_timeout=stall_timeout,
        tls=tls_files(tls_cert, tls_key, tls_client_ca),
        tokens=OPEN if token_file is None else token_file.book,
        insecure_public=insecure_public,
        log_prompts=log_prompts,
        trees=TreeSettings(max_sessions, tree_grace, tree_idle),
    )
    plan = ServePlan(
        given(flags),
        settings,
        metrics_listen,
        grace,
        patience(engine_timeout, step_timeout),
        journal,
        rotation(journal, journal_size, journal_keep),
        token_file,
    )
    raise typer.Exit(serve_until_told(plan))
