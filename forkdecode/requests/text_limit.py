"""How long a text may be before it is given to a tokenizer, which takes seconds for a megabyte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from forkdecode.errors import invalid

_LEAST = 16
"""Characters a token that are always let through: tokenizers may fold spaces, or unknown words."""
MAX_DETOKENIZED = 65_536
"""Token ids that are made text at once, if the model has fewer positions."""


class TextLimit:
    """Refuses texts that cannot fit a model: even of its longest tokens they are too many."""

    def __init__(self, tokenizer: Any | None, max_positions: int) -> None:
        longest = 0 if tokenizer is None else max(map(len, tokenizer.get_vocab()), default=0)
        self._positions = max_positions
        self._characters = max_positions * max(longest, _LEAST)

    def check_text(self, field: str, text: str) -> None:
        """Raises InvalidRequestError for a text that has too many characters."""
        if len(text) > self._characters:
            raise invalid(field, f"has {len(text)} characters", f"at most {self._characters} with this model")

    def check_prompt(self, prompt: Any) -> None:
        """The same of a text, or of a chat's messages together, and of how many they are. What is wrong
        in another way is let through: it is found where prompts are read."""
        if isinstance(prompt, str):
            self.check_text("prompt", prompt)
        if not isinstance(prompt, Sequence) or not prompt or not isinstance(prompt[0], Mapping):
            return
        if len(prompt) > self._positions:
            raise invalid(
                "prompt", f"has {len(prompt)} messages", f"at most {self._positions} with this model"
            )
        texts = (value for turn in prompt if isinstance(turn, Mapping) for value in turn.values())
        size = sum(len(text) for text in texts if isinstance(text, str))
        if size > self._characters:
            raise invalid("prompt", f"has {size} characters", f"at most {self._characters} with this model")

    def check_ids(self, token_ids: Sequence[int]) -> None:
        """Raises InvalidRequestError for more token ids than are made text at once."""
        most = max(self._positions, MAX_DETOKENIZED)
        if len(token_ids) > most:
            raise invalid("token_ids", f"has {len(token_ids)} ids", f"at most {most}")
