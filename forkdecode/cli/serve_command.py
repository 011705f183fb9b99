"""`forkdecode serve`: its flags. What it does is in serve.py."""

from __future__ import annotations

import os
from typing import Any

import typer

from forkdecode.cli.flags import ENGINE_FLAGS, Debug, with_flags
from forkdecode.cli.server_flags import server_parameters


@with_flags(ENGINE_FLAGS, before=server_parameters())
def serve(debug: Debug = False, **flags: Any) -> None:
    """Serve a model over gRPC until SIGTERM or Ctrl-C; a second one stops it at once."""
    # Read when grpc is imported. What it would write to stderr is no line of our log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from forkdecode.cli.serve import plan_of, serve_until_told

    raise typer.Exit(serve_until_told(plan_of(flags)))
