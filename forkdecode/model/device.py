"""What a step on a GPU needs around it: that the GPU is the current one, that products are as exact as their
dtype, and a word when it is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
    chosen, mixed = "highest", None
    try:
        chosen = torch.get_float32_matmul_precision()
    except RuntimeError:  # chosen by newer settings, which say another thing than the older one
        mixed = torch.backends.cuda.matmul.fp32_precision
    if chosen == "highest" and mixed is None:
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if mixed is None:
            torch.set_float32_matmul_precision(chosen)
        else:
            torch.backends.cuda.matmul.fp32_precision = mixed


def give_back() -> None:
    """GPUs' memory that torch keeps for nobody goes back to them, where other processes find it."""
    torch.cuda.empty_cache()


def lacks_memory(error: BaseException | None) -> bool:
    """Whether something was raised for want of a GPU's memory: by torch's allocator, or, in other words, by
    a driver or library that allocates itself. The end of a capture raises another error than what ended
    it."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in _NO_MEMORY):
            return True
        error = error.__cause__ or error.__context__
    return False


_NO_MEMORY = ("CUDA error: out of memory", "HIP error: out of memory", "STATUS_ALLOC_FAILED")


def check_answers(device: torch.device) -> None:
    """Raises DeviceLostError where a GPU does not answer any more; waits for what it was told before."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except Exception as error:
        raise DeviceLostError(f"{device} does not answer any more: {error}") from error
