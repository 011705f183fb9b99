"""What peers are called."""

from __future__ import annotations

OURS = "forkdecode"
PEERS = ("transformers", "transformers_batching", "ctranslate2", "vllm", "vllm_cached")


def parsed(text: str) -> tuple[str, dict[str, int]]:
    """Of "NAME" or "NAME:OPTION=NUMBER,...": the peer, and what its class is given besides. Raises
    ValueError for what is neither."""
    name, _, rest = text.partition(":")
    if name not in (OURS, *PEERS):
        raise ValueError(f"{name!r} is not one of {', '.join(PEERS)}")
    options = {}
    for part in filter(None, rest.split(",")):
        option, _, number = part.partition("=")
        if not number.isdecimal():
            raise ValueError(f"{part!r} is not OPTION=NUMBER")
        options[option] = int(number)
    return name, options


def shown(text: str) -> str:
    """As tables have it: "vllm cached", "ctranslate2 (batch 4)"."""
    name, _, rest = text.partition(":")
    name = name.replace("_", " ")
    return f"{name} ({rest.replace('=', ' ').replace(',', ', ')})" if rest else name
