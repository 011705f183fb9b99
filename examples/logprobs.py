"""Log-probabilities: the chosen token's and the likeliest ones' at each step, before and after options."""

import sys

from forkdecode import DEFAULT_MODEL, LLM

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    assert llm.tokenizer is not None
    result = llm.decode("The capital of Italy is", max_tokens=5, logprobs=3, repetition_penalty=1.2)
    for token in result.candidates[0].logprobs or ():
        likely = ", ".join(f"{llm.tokenizer.decode([i])!r} {p:.2f}" for i, p in token.top)
        chosen = llm.tokenizer.decode([token.token_id])
        print(f"{chosen!r} {token.logprob:.2f} (after the penalty {token.selection_logprob:.2f}); {likely}")
