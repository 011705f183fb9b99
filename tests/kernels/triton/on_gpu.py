"""The interpreter's tests on a GPU: operations get CPU tensors there, and what they change comes back."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any

import torch

OPERATIONS = {
    "triton.node_attention": ("node_attention",),
    "triton.paged_decode": ("paged_decode",),
    "triton.copy_blocks": ("copy_blocks",),
    "triton.write_kv": ("write_kv",),
    "triton.float_rows": ("row_logsumexp", "float_rows", "keep_bits", "bits_of_lists"),
    "triton.philox": ("uniforms", "gumbels"),
    "triton.filtered_draw": ("filtered_draw",),
    "calls": ("alone",),
    "topk": ("gpu_groups",),
    "row_candidates": ("gpu_rows",),
    "draw": ("gpu_draws",),
    "perturbed": ("gpu_topk",),
    "logsumexp": ("gpu_rows",),
    "allowed": ("gpu_bits",),
}
"""What the tests call, by module of forkdecode_kernels."""


def send_operations() -> None:
    """Replaces them, in a process whose tests have not been imported yet."""
    for module, names in OPERATIONS.items():
        loaded = importlib.import_module(f"forkdecode_kernels.{module}")
        for name in names:
            setattr(loaded, name, elsewhere(getattr(loaded, name), lambda t: t.cuda()))


def elsewhere(
    operation: Callable[..., Any], send: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[..., Any]:
    """The operation on tensors that `send` has made of the CPU's, once of each; dataclasses, lists and tuples
    are looked into. What it changes in place is copied back, what it returns is brought to the CPU."""

    @wraps(operation)
    def run(*args: Any, **kwargs: Any) -> Any:
        sent: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

        def there(t: torch.Tensor) -> torch.Tensor:
            if t.device.type != "cpu":
                return t
            if id(t) not in sent:
                moved = send(t)
                sent[id(t)] = (t, moved, moved.clone())
            return sent[id(t)][1]

        found = operation(*_mapped(args, there), **{name: _mapped(v, there) for name, v in kwargs.items()})
        for here, moved, before in sent.values():
            if not torch.equal(_bits(moved), _bits(before)):
                here.copy_(moved)
        # A call within another has sent nothing, and leaves its answer there.
        return _mapped(found, torch.Tensor.cpu) if sent else found

    return run


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous().view(-1).view(torch.uint8)


def _mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        old = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: _mapped(v, change) for name, v in old.items()}
        return replace(value, **new) if any(new[name] is not old[name] for name in new) else value
    if type(value) in (list, tuple):
        return type(value)(_mapped(v, change) for v in value)
    return value
