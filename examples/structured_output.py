"""JSON by a schema: samples, and the likeliest of a beam. What ends can be parsed, always."""

import json
import sys

from forkdecode import DEFAULT_MODEL, LLM, Beam, JsonSchema, Sample

schema = JsonSchema(
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,11}$"},
            "founded": {"type": "integer", "minimum": 1, "maximum": 2000},
            "on_a_river": {"type": "boolean"},
        },
        "required": ["city", "founded", "on_a_river"],
        "additionalProperties": False,
        # Without it models may write as much space between the parts as they like.
        "x-guidance": {"whitespace_flexible": False},
    }
)

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    for strategy in (Sample(n=3, temperature=0.9, seed=1), Beam(width=4, num_return_sequences=2)):
        print(type(strategy).__name__)
        result = llm.decode("A city in Europe, as JSON:\n", strategy, constraint=schema, max_tokens=80)
        for candidate in result.candidates:
            if candidate.finish_reason == "eos":
                city = json.loads(candidate.text)
                river = "on a river" if city["on_a_river"] else "on none"
                print(f"  {city['city']}, founded in {city['founded']}, {river}")
            else:
                print(f"  cut off: {candidate.text!r}")
