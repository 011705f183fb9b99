"""Many requests from one event loop: they join the running batch and leave it as they finish."""

import asyncio
import sys

from forkdecode import DEFAULT_MODEL, AsyncLLM, Sample

colours = ["red", "green", "blue", "white", "black"]


async def main(model: str) -> None:
    async with await AsyncLLM.create(model) as llm:

        async def describe(colour: str) -> str:
            prompt = f"A thing that is {colour} is"
            result = await llm.decode(prompt, Sample(seed=1, temperature=0.7), max_tokens=10)
            return f"{colour}: {result.text!r}"

        for done in asyncio.as_completed([describe(colour) for colour in colours]):
            print(await done)


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL))
