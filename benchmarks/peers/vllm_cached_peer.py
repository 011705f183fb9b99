"""vLLM with its prefix cache on: after the first run it has the prompts' keys and values."""

from __future__ import annotations

from benchmarks.peers import vllm_peer


class Peer(vllm_peer.Peer):
    prefix_cache = True
