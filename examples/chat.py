"""A conversation: the model's chat template, and each turn's blocks found again by the next."""

import sys

from forkdecode import DEFAULT_MODEL, LLM

messages = [{"role": "system", "content": "You answer in one short sentence."}]

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    for question in ("What do bees make?", "Who eats it?", "And what do they drink?"):
        messages.append({"role": "user", "content": question})
        result = llm.decode(messages, max_tokens=24)
        messages.append({"role": "assistant", "content": result.text})
        usage = result.usage
        print(f"{question} {result.text!r}")
        print(f"  {usage.cached_tokens} of {usage.prompt_tokens} prompt tokens were cached")
