"""The journal's file: whole records only, one writer, foreign files left alone; the disk is never ahead."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forkdecode.engine.journal import open_journal
from forkdecode.engine.journal_file import JournalReader, frame, open_to_append
from forkdecode.engine.journal_writer import JournalWriter
from forkdecode.engine.replay import replay
from forkdecode.errors import InvalidRequestError
from forkdecode.scheduler.events import GroupFailed, GroupFinished
from forkdecode.types import Beam, CustomScorer, DiverseBeam, Sample
from forkdecode.wire.records import CODEC
from tests.engine.journals import RUN, START, journaled, records
from tests.scheduler.engines import request, run


def written(path: Path, *payloads: bytes) -> Path:
    path.write_bytes(START + b"".join(map(frame, payloads)))
    return path


def test_records_come_back_as_they_were_written(tmp_path: Path) -> None:
    payloads = [b"", b"a", bytes(range(256)) * 100]
    reader = JournalReader(written(tmp_path / "j", *payloads))
    assert list(reader) == payloads
    assert reader.damage is None


def test_a_file_cut_off_anywhere_is_read_to_its_last_whole_record(tmp_path: Path) -> None:
    whole = written(tmp_path / "j", b"first", b"second").read_bytes()
    ends = [len(START), len(START + frame(b"first")), len(whole)]
    for size in range(len(START), len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:size])
        reader = JournalReader(tmp_path / "cut")
        found = list(reader)
        assert len(found) == sum(end <= size for end in ends) - 1
        assert (reader.damage is None) == (size in ends)
        if reader.damage is not None:
            assert reader.damage.cut_off
            assert reader.damage.unread == size - reader.end


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    whole = bytearray(written(tmp_path / "j", b"first", b"second").read_bytes())
    second = len(START + frame(b"first"))
    for at in range(len(START), second):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        (tmp_path / "broken").write_bytes(broken)
        reader = JournalReader(tmp_path / "broken")
        assert list(reader) == []
        assert reader.damage is not None
        assert not reader.damage.cut_off
        assert (reader.damage.record, reader.damage.offset) == (1, len(START))
        assert "record 1 at byte 12 is damaged" in str(reader.damage)


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (b"", "no step journal"),
        (b"FDJ", "no step journal"),
        (b"%PDF-1.7 and more of it", "no step journal"),
        (START[:8] + (99).to_bytes(4, "little"), "format 99"),
    ],
)
def test_foreign_files_and_formats_are_named(tmp_path: Path, start: bytes, problem: str) -> None:
    (tmp_path / "j").write_bytes(start)
    with pytest.raises(
        InvalidRequestError, match=f"journal: .*{problem}.*allowed: a step journal of format 1"
    ):
        list(JournalReader(tmp_path / "j"))
    if len(start) > 3:  # what is empty, or cut off in its beginning, may be written to
        with pytest.raises(InvalidRequestError, match=problem):
            open_to_append(tmp_path / "j")
        assert (tmp_path / "j").read_bytes() == start


def test_an_unfinished_record_is_dropped_before_more_is_appended(tmp_path: Path) -> None:
    path = written(tmp_path / "j", b"first", b"second")
    path.write_bytes(path.read_bytes()[:-3])
    with open_to_append(path) as file:
        file.write(frame(b"third"))
    reader = JournalReader(path)
    assert list(reader) == [b"first", b"third"]
    assert reader.damage is None


@pytest.mark.parametrize("size", range(len(START)))
def test_a_beginning_that_was_cut_off_is_written_anew(tmp_path: Path, size: int) -> None:
    path = tmp_path / "j"
    path.write_bytes(START[:size])
    with open_to_append(path) as file:
        file.write(frame(b"first"))
    assert list(JournalReader(path)) == [b"first"]


@pytest.mark.parametrize("kind", ["no folder", "a folder", "damaged", "written by another"])
def test_a_journal_that_cannot_go_on_is_refused_by_name_and_keeps_no_later_engine_down(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / ("gone/j" if kind == "no folder" else "j")
    broken = bytearray(written(tmp_path / "other", b"first", b"second").read_bytes())
    broken[len(START)] ^= 1
    with contextlib.ExitStack() as stack:
        if kind == "a folder":
            path.mkdir()
        elif kind == "damaged":
            path.write_bytes(broken)
        elif kind == "written by another":
            stack.enter_context(open_to_append(path))
        says = "can't be written: " if "folder" in kind else ""
        with pytest.raises(InvalidRequestError, match=f"^journal: .*{says}") as error:
            open_journal(path, RUN, None, again=False)
        assert error.value.field == "journal"
        assert not caplog.records
        assert open_journal(path, RUN, None, again=True) is None
    assert [record.getMessage() for record in caplog.records] == ["journal_ended record='run'"]
    if kind == "damaged":
        assert path.read_bytes() == broken


def test_nothing_is_appended_to_a_damaged_journal(tmp_path: Path) -> None:
    path = written(tmp_path / "j", b"first", b"second")
    broken = bytearray(path.read_bytes())
    broken[len(START)] ^= 1
    path.write_bytes(broken)
    with pytest.raises(InvalidRequestError, match="record 1 at byte 12 is damaged"):
        open_to_append(path)
    assert path.read_bytes() == broken


def test_one_writer_a_file(tmp_path: Path) -> None:
    with open_to_append(tmp_path / "j"), pytest.raises(InvalidRequestError, match="another process"):
        open_to_append(tmp_path / "j")
    open_to_append(tmp_path / "j").close()


def test_what_was_stepped_is_on_disk_once_the_engine_is_closed(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j")
    engine.submit(request("a", [3, 4, 5], Sample(n=2, seed=1), max_tokens=3))
    run(engine)
    engine.close()
    engine.close()
    kinds = [record[0] for record in records(tmp_path / "j")]
    assert kinds == ["run", "add", *["plan", "output", "events"] * engine.stats().steps, "end"]


def test_what_requests_of_one_command_share_is_written_once(tmp_path: Path) -> None:
    """And what others share with none is not."""
    engine = journaled(tmp_path / "j")
    biased = request(
        "0", [3, 4], Sample(n=2, seed=1), max_tokens=2, logit_bias=dict.fromkeys(range(999), 0.5)
    )
    alike = [dataclasses.replace(biased, request_id=str(i), prompt=np.array([3, i])) for i in range(20)]
    other = request("other", [3], Beam(width=2), max_tokens=2)
    for one in (*alike, other, dataclasses.replace(alike[0], request_id="again")):
        engine.submit(one)
    run(engine)
    engine.close()
    found = [record[:2] for record in records(tmp_path / "j") if record[0] in ("add", "like")]
    assert [kind for kind, _ in found] == ["add", *["like"] * 19, "add", "add"]
    assert [kept.request_id for _, kept in found] == [*map(str, range(20)), "other", "again"]
    assert sum(len(CODEC.encode(kept)) for _, kept in found) < 4 * len(CODEC.encode(biased))
    replayed = replay(tmp_path / "j")
    assert replayed.ok
    assert replayed.runs[0].requests == 22


def test_a_killed_process_leaves_whole_records(tmp_path: Path) -> None:
    program = f"""
import os, signal
from pathlib import Path
from typing import Any
from tests.engine.journals import journaled
from tests.scheduler.engines import request
from forkdecode.types import Beam
engine = journaled(Path({str(tmp_path / "j")!r}))
for i in range(4):
    engine.submit(request(f"r{{i}}", [3, 4, 5], Beam(width=4), max_tokens=50))
for _ in range(20):
    engine.step()
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    kinds = [record[0] for record in records(tmp_path / "j")]
    assert kinds[:5] == ["run", "add", "add", "add", "add"]


class Stuck:
    """A disk that takes nothing until it is let go, then a byte at a time."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.data = b""

    def write(self, data: memoryview) -> int:
        self.go.wait(60)
        self.data += bytes(data[:1])
        return min(1, len(data))

    def close(self) -> None: ...


def test_a_slow_disk_makes_steps_wait_and_loses_nothing() -> None:
    disk = Stuck()
    writer = JournalWriter(disk, limit=100)  # type: ignore[arg-type]
    handed: list[int] = []

    def hand_over() -> None:
        for i in range(40):
            writer.put(bytes([i]) * 10)
            handed.append(i)

    thread = threading.Thread(target=hand_over)
    thread.start()
    while len(handed) < 10:
        pass  # the first hundred bytes go at once
    assert thread.is_alive()
    assert len(handed) <= 11  # the limit, and the one that passed it
    disk.go.set()
    thread.join(60)
    writer.close()
    assert disk.data == b"".join(bytes([i]) * 10 for i in range(40))


class Full:
    is_closed = False

    def write(self, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.is_closed = True


def test_a_full_disk_ends_the_journal_not_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    disk = Full()
    writer = JournalWriter(disk, limit=10)  # type: ignore[arg-type]
    for _ in range(100):
        writer.put(b"x" * 10)
    writer.close()
    assert [record.getMessage() for record in caplog.records] == ["journal_ended record='write'"]
    assert disk.is_closed


def test_a_record_that_cannot_be_encoded_ends_the_journal_not_the_engine(tmp_path: Path) -> None:
    engine = journaled(tmp_path / "j")
    what = request("a", [3, 4, 5], Beam(width=2), max_tokens=3)
    object.__setattr__(what, "seed", 2**80)
    engine.submit(what)
    run(engine)
    engine.close()
    assert [record[0] for record in records(tmp_path / "j")] == ["run", "gap"]


class NotShownError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not to be shown")


def test_an_error_that_cannot_be_shown_ends_its_groups_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may be a caller's own."""
    engine = journaled(tmp_path / "j")
    what = request("a", [3, 4, 5], Beam(width=2), max_tokens=3)

    def breaks(plan: object) -> None:
        raise NotShownError

    with monkeypatch.context() as patch:
        patch.setattr(engine._runner, "execute", breaks)
        engine.submit(what)
        failed = run(engine)["a"]
    assert isinstance(failed, GroupFailed)
    assert "NotShownError, which can't be shown" in str(failed.error)
    engine.submit(what)
    assert isinstance(run(engine)["a"], GroupFinished)
    engine.close()
    assert ["error", "NotShownError", "what can't be shown"] in records(tmp_path / "j")


@pytest.mark.parametrize("kind", [Beam, DiverseBeam])
def test_a_scorer_that_cannot_be_kept_is_refused_before_anything_runs(tmp_path: Path, kind: Any) -> None:
    engine = journaled(tmp_path / "j")
    what = request(
        "a", [3, 4, 5], kind(4, scorer=CustomScorer(lambda sums, length, data: sums)), max_tokens=3
    )
    for refuse in (engine.check_request, engine.submit):
        with pytest.raises(InvalidRequestError) as caught:
            refuse(what)
        assert caught.value.field == "scorer"
    assert not engine.has_work
    engine.submit(request("b", [3, 4, 5], kind(4), max_tokens=3))
    run(engine)
    engine.close()
    assert [record[0] for record in records(tmp_path / "j")][:2] == ["run", "add"]
