from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from platformdirs import user_cache_path

from forkdecode_kernels.cpu import team, trie
from forkdecode_kernels.cpu.selection import code_folder as module
from forkdecode_kernels.cpu.selection import jit
from forkdecode_kernels.cpu.selection.code_folder import code_folder, is_installed

INSTALLED = Path("/venv/lib/python3.11/site-packages/forkdecode_kernels/cpu/selection/code_folder.py")
CHECKOUT = Path("/home/me/forkdecode/kernels/forkdecode_kernels/cpu/selection/code_folder.py")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(module._config, "CACHE_DIR", "")
    return module._config


def test_what_an_installer_wrote_is_known_by_its_folder() -> None:
    assert is_installed(INSTALLED)
    assert is_installed(Path("/usr/lib/python3/dist-packages/forkdecode_kernels/cpu/trie.py"))
    assert not is_installed(CHECKOUT)


def test_the_setting_is_as_it_was_afterwards(config: Any) -> None:
    with code_folder(INSTALLED):
        assert Path(config.CACHE_DIR) == user_cache_path("forkdecode", appauthor=False) / "kernels"
    assert config.CACHE_DIR == ""
    with code_folder(CHECKOUT):
        assert config.CACHE_DIR == ""


def test_a_folder_that_the_user_chose_stays(config: Any) -> None:
    config.CACHE_DIR = "/chosen"
    with code_folder(INSTALLED):
        assert config.CACHE_DIR == "/chosen"
    assert config.CACHE_DIR == "/chosen"


def test_a_user_without_a_home_has_no_folder(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(*_: Any, **__: Any) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(module, "user_cache_path", homeless)
    with code_folder(INSTALLED):
        assert config.CACHE_DIR == ""


def nothing(arguments: Any) -> None:
    """What threads are to do."""


def test_an_installations_code_is_no_file_of_its_folder(
    config: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It would be left behind there, and an editable installation would no longer be found."""
    monkeypatch.setattr(module, "is_installed", lambda source: True)
    monkeypatch.setattr(module, "user_cache_path", lambda *_, **__: tmp_path)
    function: Any = trie.step_down
    compiled: Any = jit.entry(function.py_func)
    assert Path(compiled._cache.cache_path).is_relative_to(tmp_path / "kernels")
    team.compile_work(nothing)
    assert list((tmp_path / "kernels").rglob("*nothing*.nbc"))
