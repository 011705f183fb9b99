"""How far nodes are decoded in tests of trees."""

from __future__ import annotations

from typing import Any

from tests.llm.models import ids

WORDS: dict[str, Any] = {"max_tokens": 6, "allowed_token_ids": ids("abc d\n"), "ignore_eos": True}
LONG: dict[str, Any] = {"max_tokens": 300, "ignore_eos": True}
