"""The in-process SDK."""

from forkdecode.calls.handle import AsyncHandle, EventStream, Handle
from forkdecode.llm.asynchronous import AsyncLLM
from forkdecode.llm.sync import LLM

__all__ = ["LLM", "AsyncHandle", "AsyncLLM", "EventStream", "Handle"]
