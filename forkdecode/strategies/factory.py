"""From what a caller asks for to the policy that does it."""

from __future__ import annotations

from forkdecode.step import I64
from forkdecode.strategies.policy import Policy
from forkdecode.types import Options, Strategy


def make_policy(strategy: Strategy, options: Options, stop_ids: I64) -> Policy:
    """A fresh policy for one request. stop_ids: the EOS and stop token ids that end a candidate."""
    raise NotImplementedError
