"""How a tree session begins."""

from __future__ import annotations

from dataclasses import dataclass

from forkdecode.checks import check_bool, check_int, check_unicode, keep
from forkdecode.errors import invalid
from forkdecode.types import MAX_SEED, Prompt


@dataclass(frozen=True, slots=True)
class OpenTree:
    """prompt: the root, node 0: a text, token ids or chat messages; None: no node yet, imported nodes become
    the roots. chat: a text is one user message. seed: determines the root's lineage; None draws a fresh one,
    which TreeOpened reports. cache_salt: of everything the session computes."""

    prompt: Prompt | None = None
    chat: bool = False
    seed: int | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        keep(self, "chat", check_bool)
        if self.chat and self.prompt is None:
            raise invalid("chat", "there is no prompt", "False without a prompt")
        if self.seed is not None:
            keep(self, "seed", check_int, 0, MAX_SEED)
        keep(self, "cache_salt", check_unicode)
