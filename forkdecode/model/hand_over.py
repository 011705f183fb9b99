"""Handing something to a model's attention past its modules.

Keyword arguments of a model's forward are handed on to attention by most families, and dropped by some
(StableLM's and Nemotron's layers). Here each attention module holds the box instead.
"""

from __future__ import annotations

from typing import Any

import torch

_ATTRIBUTE = "forkdecode_box"


class HandOver:
    """One model's box: its attention finds what is put into `content`. A later one takes its place."""

    __slots__ = ("content",)

    def __init__(self, model: torch.nn.Module) -> None:
        self.content: Any = None
        for module in model.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, _ATTRIBUTE, self)


def handed(module: torch.nn.Module) -> Any:
    """What attention `module` is handed at present, or None."""
    box = getattr(module, _ATTRIBUTE, None)
    return box.content if isinstance(box, HandOver) else None
