"""A file of tokens that may change while a server runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from forkdecode.errors import InvalidRequestError
from forkdecode.file_stamp import file_stamp
from forkdecode.server.auth import read_tokens

RECHECK = 5.0
"""Seconds from one look at the file to the next."""


class TokenFile:
    """The book of a file's tokens, kept as the file is. Belongs to the loop, but for its constructor.

    A file that can't be used leaves the book as it was: the log says why, once for each state of the file.
    Raises InvalidRequestError as read_tokens does.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = file_stamp(path)  # before it is read: a later file has another one
        self.book = read_tokens(path)

    async def watch(self, told: asyncio.Event, log: Any) -> None:
        """Reads the file again when it has changed, or `told` is set, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(RECHECK):
                    await told.wait()
            except TimeoutError:
                pass
            await self.look(log, anyway=told.is_set())
            told.clear()

    async def look(self, log: Any, *, anyway: bool = False) -> None:
        """Reads the file again if it has changed, or `anyway`."""
        stamp = await asyncio.to_thread(file_stamp, self._path)
        if stamp == self._stamp and not anyway:
            return
        self._stamp = stamp
        try:
            self.book.become(await asyncio.to_thread(read_tokens, self._path))
        except InvalidRequestError as error:
            log.error("tokens_not_read", problem=str(error))
        else:
            log.info("tokens_read", callers=self.book.size)
