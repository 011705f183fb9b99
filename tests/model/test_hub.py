"""Models of the hub, where there is none."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import pytest
from huggingface_hub import constants

from forkdecode.cli.tokenizer import open_tokenizer
from forkdecode.errors import InvalidRequestError, ModelLoadError
from forkdecode.model.loader import load

SAID = "model 'tiny' can't be opened: there is no folder of that name here, and the hub can't be reached"


def test_a_hub_that_can_t_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as hub:

        def hang_up() -> None:
            with contextlib.suppress(OSError):  # closed below
                while True:
                    connection, _ = hub.accept()
                    with connection:
                        calls.append(connection.recv(4096))

        thread = threading.Thread(target=hang_up)
        thread.start()
        here = f"http://127.0.0.1:{hub.getsockname()[1]}"
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, here)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", here)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        with pytest.raises(ModelLoadError, match=SAID) as caught:
            load("tiny")
        hub.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert caught.value.field == "model"
    # Once in a process huggingface_hub asks for something of its own, too.
    assert len([call for call in calls if b" /tiny/" in call]) == 1


def test_a_tokenizer_of_the_hub_is_told_of_alike() -> None:
    with pytest.raises(InvalidRequestError, match=f"^tokenizer: {SAID}"):
        open_tokenizer("tokenizer", "tiny")


def test_what_is_in_the_cache_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with it is told, and not that nobody is there."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--tiny"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    (folder / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (folder / "snapshots" / ("a" * 40) / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"^model 'tiny' can't be opened"):
        load("tiny")
