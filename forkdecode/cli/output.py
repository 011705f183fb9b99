"""The results file: what it already holds, and appending to it so that an interrupt loses nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from forkdecode.errors import InvalidRequestError, invalid

_ANEW = "a file that this command wrote for the same input, or --overwrite"


class ResultsFile:
    """One JSON object a line. `done`: line of the input -> digest of the request it finished.

    Nothing is written before start(): that keeps an existing file's results and drops what is to be
    redone, which is lines that failed and a last one cut off by an interrupt.
    Raises InvalidRequestError for a file of another kind.
    """

    def __init__(self, path: Path, *, overwrite: bool = False) -> None:
        if path.exists() and not path.is_file():
            raise invalid("--output", f"{str(path)!r} is not a file", "a file to write")
        self.path = path
        self.done: dict[int, str] = {}
        self._kept = self._read() if path.exists() and not overwrite else []
        self._file: TextIO | None = None

    def start(self) -> None:
        """Replaces the file by what it keeps, in one rename, and opens it for more."""
        work = self.path.with_name(f".{self.path.name}.new")
        work.write_bytes(b"".join(line + b"\n" for line in self._kept))
        os.replace(work, self.path)
        self._kept = []
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed by close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record whole."""
        assert self._file is not None, "start() comes first"
        self._file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[bytes]:
        kept = []
        lines = self.path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            is_last = number == len(lines)  # empty where the file ends well
            try:
                record = json.loads(line)
                finished = (record["line"], record["digest"]) if "error" not in record else None
            except (ValueError, KeyError, TypeError):
                if is_last or not line.strip():
                    continue
                raise _foreign(number) from None
            if finished is not None:
                self.done[finished[0]] = finished[1]
                kept.append(line)
        return kept

    def check(self, line: int, digest: str) -> bool:
        """Whether this request is finished already. Raises where the file has another in its place."""
        found = self.done.get(line)
        if found is not None and found != digest:
            raise invalid(
                "--output",
                f"its result for line {line} is of another request or of other options",
                _ANEW,
            )
        return found is not None


def _foreign(number: int) -> InvalidRequestError:
    return invalid("--output", f"line {number} of the file is not a result of this command", _ANEW)
