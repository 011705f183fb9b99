"""vLLM with its prefix cache on: after the first run it has the prompts' keys and values. What is cached is
whole blocks, so they are small: of its default, 128 tokens, a beam's search would decode most anew."""

from __future__ import annotations

from benchmarks.peers import vllm_peer


class Peer(vllm_peer.Peer):
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        super().__init__(folder, dtype, threads, enable_prefix_caching=True, block_size=32)
