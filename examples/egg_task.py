"""A task for search_*.py with whole answers that can be counted: a small word problem."""

import re

from forkdecode import Options, Sample
from forkdecode.search import Decoding

PROMPT = """Question: A box has 4 eggs. How many eggs are in 2 boxes?
Answer: 2 * 4 = 8

Question: A bag has 3 pens. How many pens are in 3 bags?
Answer: 3 * 3 = 9

Question: A car has 4 wheels. How many wheels have 3 cars?
Answer:"""
DECODING = Decoding(Sample(temperature=0.7), max_tokens=12, options=Options(stop=("\n",)))


def answer(text: str) -> str | None:
    """The last number."""
    numbers = re.findall(r"\d+", text)
    return numbers[-1] if numbers else None
