"""How far nodes are decoded in tests of sessions."""

from __future__ import annotations

from forkdecode.types import Options
from tests.llm.models import EOS_ID

ENDS = Options(max_tokens=3, allowed_token_ids=(EOS_ID,))
SHORT = Options(max_tokens=4, ignore_eos=True)
