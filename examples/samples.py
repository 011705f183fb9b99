"""Parallel sampling: n different answers to one prompt, the same ones again for the same seed."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Sample

strategy = Sample(n=4, temperature=0.8, top_p=0.95, seed=7)

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    first = llm.decode("My favourite place is", strategy, max_tokens=16)
    again = llm.decode("My favourite place is", strategy, max_tokens=16)
    for candidate in first.candidates:
        print(f"{candidate.index}: {candidate.text!r}")
    same = [c.token_ids for c in first.candidates] == [c.token_ids for c in again.candidates]
    print("the same again:", same)
