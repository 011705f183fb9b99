"""The remote SDK: the verbs of LLM and AsyncLLM, by a server. No torch, no numpy, no transformers."""

from forkdecode.client.asynchronous import AsyncClient
from forkdecode.client.settings import Tls
from forkdecode.client.sync import Client

__all__ = ["AsyncClient", "Client", "Tls"]
