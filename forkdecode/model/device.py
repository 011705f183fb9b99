"""What a step on a GPU needs around it: that the GPU is the current one, and a word when it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from forkdecode.step import DeviceLostError


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Within, `device` is the thread's current one: Triton launches there wherever its tensors are, and
    events are recorded there. Where something was raised and the device does not answer any more, raises
    DeviceLostError in its place."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        try:
            yield
        except Exception:
            check_answers(device)
            raise


def check_answers(device: torch.device) -> None:
    """Raises DeviceLostError where a GPU does not answer any more; waits for what it was told before."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        raise DeviceLostError(f"{device} does not answer any more: {error}") from error
