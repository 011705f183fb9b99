"""`forkdecode decode --input`: a file of requests, its results as they finish, resumable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from forkdecode.cli.engine import show_capacity
from forkdecode.cli.output import ResultsFile
from forkdecode.cli.render import result_record
from forkdecode.cli.requests import Defaults, Request, id_of, parse_line
from forkdecode.errors import EngineClosedError, ForkdecodeError, InvalidRequestError
from forkdecode.llm import AsyncLLM
from forkdecode.text_file import without_mark

IN_FLIGHT = 512
"""Requests handed to the engine at a time: enough to fill its steps, whatever the file's length."""


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that is no request. id: its own, where that can be read."""

    line: int
    id: str | int | None
    error: InvalidRequestError


Item: TypeAlias = Request | BadLine


@dataclass(frozen=True, slots=True)
class RequestFile:
    """The input: read anew on each pass, so that its length costs no memory."""

    path: Path
    defaults: Defaults
    model: str

    def __iter__(self) -> Iterator[Item]:
        """Its requests and bad lines in order; empty lines are skipped."""
        with open(self.path, "rb") as lines:
            for number, raw in enumerate(without_mark(lines), 1):
                if not raw.strip():
                    continue
                try:
                    yield parse_line(number, raw, self.defaults, self.model)
                except InvalidRequestError as error:
                    yield BadLine(number, id_of(raw), error)


@dataclass(slots=True)
class Tally:
    """What became of the lines."""

    finished: int = 0
    failed: int = 0
    generated: int = 0
    candidates: int = 0


@dataclass(slots=True)
class FileJob:
    """One run over a file. `run` returns the exit code: 0, or 1 when lines failed, 130 when interrupted."""

    requests: RequestFile
    results: ResultsFile
    total: int
    wanted: int
    """Lines that are requests; the others fail without the engine."""
    already: int
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def open(cls, requests: RequestFile, output: Path, *, overwrite: bool) -> FileJob:
        """Raises InvalidRequestError where the output holds results of other requests."""
        if requests.path.resolve() == output.resolve():
            raise InvalidRequestError("--output: is the input file", field="--output")
        total = 0
        items = list[tuple[int, str]]()
        for item in requests:
            total += 1
            if isinstance(item, Request):
                items.append((item.line, item.digest))
        results = ResultsFile(output, overwrite=overwrite)
        already = sum(results.check(line, digest) for line, digest in items)
        if already < len(results.done):
            raise InvalidRequestError(
                "--output: has results of lines that the input does not have", field="--output"
            )
        results.start()
        return cls(requests, results, total, len(items), already)

    def run(self, open_llm: Callable[[], AsyncLLM]) -> int:
        llm: AsyncLLM | None = None
        try:
            llm = open_llm() if self.already < self.wanted else None
            asyncio.run(self._run(llm))
        except KeyboardInterrupt:
            self._say(f"interrupted after {self._sum()}; run the same command again to resume")
            return 130
        finally:
            if llm is not None:
                # Not in the loop: an interrupt before the loop runs must find the engine closed too.
                asyncio.run(llm.close())
            self.results.close()
        self._say(self._sum())
        return 1 if self.tally.failed else 0

    async def _run(self, llm: AsyncLLM | None) -> None:
        if llm is not None:
            show_capacity(llm)
        progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), disable=not Console(stderr=True).is_terminal,
        )  # fmt: skip
        task = progress.add_task("decoding", total=self.total, completed=self.already)
        free = asyncio.Semaphore(IN_FLIGHT)
        try:
            with progress:
                async with asyncio.TaskGroup() as group:
                    for item in self.requests:
                        if isinstance(item, Request) and self.results.check(item.line, item.digest):
                            continue
                        await free.acquire()
                        job = group.create_task(self._one(llm, item, progress.console))
                        job.add_done_callback(lambda _: free.release())
                        job.add_done_callback(lambda _: progress.advance(task))
        except* EngineClosedError as died:
            raise died.exceptions[0] from None

    async def _one(self, llm: AsyncLLM | None, item: Item, console: Console) -> None:
        try:
            if isinstance(item, BadLine):
                raise item.error
            assert llm is not None, "opened where a request is left to do"
            result = await llm.decode(item.prompt, item.strategy, options=item.options, chat=item.chat)
        except EngineClosedError:
            raise
        except ForkdecodeError as error:
            self.tally.failed += 1
            console.print(f"[red]line {item.line}:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
            self.results.append(_error_record(item, error))
            return
        self.tally.finished += 1
        self.tally.generated += result.usage.generated_tokens
        self.tally.candidates += len(result.candidates)
        head = {"line": item.line, "id": item.id, "digest": item.digest}
        self.results.append(head | result_record(result))

    def _sum(self) -> str:
        tally = self.tally
        parts = [f"{tally.finished} finished ({tally.candidates} candidates, {tally.generated} tokens)"]
        parts += [f"{self.already} finished earlier"] if self.already else []
        parts += [f"{tally.failed} failed"] if tally.failed else []
        return f"{', '.join(parts)}, of {self.total} requests"

    def _say(self, text: str) -> None:
        typer.echo(text, err=True)


def _error_record(item: Item, error: ForkdecodeError) -> dict[str, Any]:
    said = {"type": type(error).__name__, "field": error.field, "message": str(error)}
    record: dict[str, Any] = {"line": item.line, "id": item.id, "error": said}
    partial = getattr(error, "partial", None)
    return record | ({"partial": result_record(partial)} if partial is not None else {})
