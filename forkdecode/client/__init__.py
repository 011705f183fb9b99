"""The remote SDK: the methods of LLM and AsyncLLM, through a server. Needs neither torch, numpy nor
transformers."""

from forkdecode.client.asynchronous import AsyncClient
from forkdecode.client.settings import Tls
from forkdecode.client.sync import Client

__all__ = ["AsyncClient", "Client", "Tls"]
