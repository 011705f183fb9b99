"""The remote SDK: the methods of LLM and AsyncLLM, through a server. Needs neither torch, numpy nor
transformers."""

import os

# Read when grpc is first imported, or first used. With it, gRPC tidies itself up in the child of a fork()
# while it has a call open, and dies of that (SIGSEGV) now and then; a child may not use it anyway (forks.py).
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from forkdecode.client.asynchronous import AsyncClient
from forkdecode.client.settings import Tls
from forkdecode.client.sync import Client

__all__ = ["AsyncClient", "Client", "Tls"]
