"""What a step on a GPU needs around it: that the GPU is the current one, that products are as exact as their
dtype, and a word when it is lost."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from forkdecode.errors import causes
from forkdecode.step import DeviceLostError


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """Within, `device` is the thread's current one: Triton launches there wherever its tensors are, and
    events are recorded there; and float32 products are exact ones. Where something was raised and the device
    does not answer any more, raises DeviceLostError in its place."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device), exact_products():
        try:
            yield
        except Exception:
            check_answers(device)
            raise


@contextmanager
def exact_products() -> Iterator[None]:
    """Within, float32 products keep all bits of float32, though the process may have chosen TF32 for them,
    which keeps ten: enough neither for equal results nor for the angles of rotary embeddings behind 2,048
    tokens."""
    _EXACT.enter()
    try:
        yield
    finally:
        _EXACT.leave()


class _Exact:
    """The steps of all engines that are within: the choice is the process's, and the last to leave restores
    it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._within = 0
        self._restore: Callable[[], None] = _nothing

    def enter(self) -> None:
        with self._lock:
            if not self._within:
                self._restore = _choose_exact()
            self._within += 1

    def leave(self) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:
                self._restore()


def _choose_exact() -> Callable[[], None]:
    """Returns what takes it back."""
    try:
        chosen = torch.get_float32_matmul_precision()
    except RuntimeError:  # chosen by newer settings; the older call changes both of these
        backends: Any = torch.backends
        of_gpu, of_cpu = backends.cuda.matmul, backends.mkldnn.matmul
        both = of_gpu.fp32_precision, of_cpu.fp32_precision
        torch.set_float32_matmul_precision("highest")

        def restore() -> None:
            of_gpu.fp32_precision, of_cpu.fp32_precision = both

        return restore
    if chosen == "highest":
        return _nothing
    torch.set_float32_matmul_precision("highest")
    return partial(torch.set_float32_matmul_precision, chosen)


def _nothing() -> None:
    """It was exact before."""


_EXACT = _Exact()


def give_back() -> None:
    """GPUs' memory that torch keeps for nobody goes back to them, where other processes find it."""
    torch.cuda.empty_cache()


def give_back_host() -> None:
    """Memory that the C library keeps of what was freed goes back to the system, where glibc is the library:
    of weights that are freed piece by piece among others it keeps as much as they were."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def lacks_memory(error: BaseException) -> bool:
    """Whether something was raised for want of a GPU's memory: by torch's allocator, or, in other words, by
    a driver or library that allocates itself. The end of a capture raises another error than what ended
    it."""
    return any(
        isinstance(link, torch.OutOfMemoryError) or any(words in str(link) for words in _NO_MEMORY)
        for link in causes(error)
    )


_NO_MEMORY = ("CUDA error: out of memory", "HIP error: out of memory", "STATUS_ALLOC_FAILED")


def check_answers(device: torch.device) -> None:
    """Raises DeviceLostError where a GPU does not answer any more; waits for what it was told before."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        raise DeviceLostError(f"{device} does not answer any more: {error}") from error
