"""Headless Chromium, driven over its DevTools pipe; and pages read without one."""

from __future__ import annotations

import base64
import fcntl
import itertools
import json
import os
import shutil
import signal
from html.parser import HTMLParser
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)
_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)


class Browser:
    """One tab. What it logs and every address it asks for are kept."""

    def __init__(self, profile: Path, width: int = 1400, height: int = 800) -> None:
        assert CHROMIUM is not None
        reads, told = os.pipe()
        heard, writes = os.pipe()
        # Chromium takes 3 to read from and 4 to write to; above 9 neither is in the way of the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
        flags = [*_QUIET.split(), f"--window-size={width},{height}", f"--user-data-dir={profile}"]
        silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
        moved = [(os.POSIX_SPAWN_DUP2, end, fd) for fd, end in enumerate(ends, 3)]
        self._pid = os.posix_spawn(
            CHROMIUM, [CHROMIUM, *flags], os.environ, file_actions=[*silent, *moved], setpgroup=0
        )
        for end in (reads, writes, *ends):
            os.close(end)
        self._to, self._from = os.fdopen(told, "wb"), os.fdopen(heard, "rb")
        self._ids = itertools.count(1)
        self._rest = b""
        self.events: list[dict[str, Any]] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        self._to.close()
        self._from.close()

    def open(self, path: Path) -> None:
        """Waits until it is loaded."""
        self.ask("Page.navigate", url=path.as_uri())
        while not self.said("Page.loadEventFired"):
            self._receive()

    def run(self, script: str) -> Any:
        """What an expression gives."""
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def said(self, method: str) -> list[dict[str, Any]]:
        """The events of a name until now."""
        return [event["params"] for event in self.events if event["method"] == method]

    def ask(self, method: str, **params: Any) -> Any:
        return self._ask(method, self._session, **params)

    def _ask(self, method: str, session: str | None = None, **params: Any) -> Any:
        number = next(self._ids)
        message = {"id": number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            data = os.read(self._from.fileno(), 1 << 16)
            assert data, "Chromium has ended"
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message


class Parsed(HTMLParser):
    """A page's elements, and the texts in scripts by their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.title = ""
        self._inside = ""
        self.feed(text)
        self.close()

    @property
    def data(self) -> Any:
        """The embedded tree."""
        [found] = [text for attributes, text in self.scripts if attributes.get("id") == "tree"]
        return json.loads(found)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attributes, text = self.scripts.pop()
            self.scripts.append((attributes, text + data))
        elif self._inside == "title":
            self.title += data
