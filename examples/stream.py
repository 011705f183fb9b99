"""Typed events as they happen: text deltas of each sample, then the whole result."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, CandidateFinished, Delta, Finished, Sample, Started

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    for event in llm.stream("Count to ten: one, two,", Sample(n=2, seed=3), max_tokens=12):
        match event:
            case Started():
                print(f"{event.prompt_tokens} prompt tokens")
            case Delta():
                print(f"[{event.candidate}] {event.text!r}")
            case CandidateFinished():
                print(f"[{event.candidate}] ends: {event.finish_reason}")
            case Finished():
                print(f"{event.result.usage.generated_tokens} tokens generated")
