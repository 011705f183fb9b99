"""What sharing saves: KV blocks of one prompt with 16 samples, against a copy for each."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Sample

prompt = "In the old town, every house had a story. " * 10

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    print(llm.capacity)
    usage = llm.decode(prompt, Sample(n=16, seed=1), max_tokens=16, ignore_eos=True).usage
    print(f"{usage.peak_unshared_blocks} blocks without sharing, {usage.peak_unique_blocks} with")
    print(f"{usage.saved:.0%} saved over time, {usage.copies} blocks copied on write")
