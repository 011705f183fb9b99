"""Where compiled code is kept: a checkout's beside its sources, an installation's in the user's cache folder.

What an installer did not write it does not remove. In site-packages the code would keep the package's
folder there after it was uninstalled, and an empty folder hides the package of an editable installation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
from platformdirs import user_cache_path

# numba reads it when a function is made; its environment variable NUMBA_CACHE_DIR sets it for all.
_config: Any = numba.config


def is_installed(source: Path) -> bool:
    """Whether an installer put the file where it is."""
    return not {"site-packages", "dist-packages"}.isdisjoint(source.parts)


@contextmanager
def code_folder(source: Path = Path(__file__)) -> Iterator[None]:
    """Functions of our sources that are made within have their compiled code in the right folder. Where
    that can't be written, or there is none, numba takes the next best."""
    folder = _users_folder() if is_installed(source) and not _config.CACHE_DIR else None
    if folder is None:
        yield
        return
    _config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        _config.CACHE_DIR = ""


def _users_folder() -> Path | None:
    """None for a user without a home, such as an id without an account in a container."""
    try:
        return user_cache_path("forkdecode", appauthor=False) / "kernels"
    except RuntimeError:
        return None
