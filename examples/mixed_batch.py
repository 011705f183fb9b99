"""Different strategies in one batch. None changes another's result, whatever runs beside it."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Beam, BestOf, Greedy, Sample, Strategy

prompt = "The best thing about the sea is"
strategies: list[Strategy] = [Greedy(), Sample(n=3, seed=1), BestOf(best_of=4, seed=1), Beam(width=4)]

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    together = llm.decode([prompt] * len(strategies), strategies, max_tokens=12)
    for strategy, result in zip(strategies, together, strict=True):
        print(f"{type(strategy).__name__}: {result.text!r}")
    alone = llm.decode(prompt, Sample(n=3, seed=1), max_tokens=12)
    same = [c.token_ids for c in alone.candidates] == [c.token_ids for c in together[1].candidates]
    print("the samples are the same alone:", same)
