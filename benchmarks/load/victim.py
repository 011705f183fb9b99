"""A client that says when it reads, to be killed: python -m benchmarks.load.victim ADDRESS PROMPT"""

from __future__ import annotations

import sys

from forkdecode import Client, Sample


def main() -> None:
    address, prompt = sys.argv[1:]
    with Client(address) as client:
        for _ in client.stream(prompt, Sample(n=4), max_tokens=64, ignore_eos=True):
            print("reading", flush=True)


if __name__ == "__main__":
    main()
