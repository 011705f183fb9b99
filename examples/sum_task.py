"""A task for search_*.py with steps that can be checked: to add three numbers, a line for each next one."""

from forkdecode import Options, Sample
from forkdecode.search import Branch, Decoding, SearchResult

_EXAMPLES = """Add 4, 9, 2.
4 + 9 = 13
13 + 2 = 15
end

Add 7, 1, 8.
7 + 1 = 8
8 + 8 = 16
end

"""
_NUMBERS = [8, 5, 4]
PROMPT = _EXAMPLES + f"Add {', '.join(map(str, _NUMBERS))}.\n"
DECODING = Decoding(
    Sample(temperature=0.8), step=("\n",), step_tokens=12, max_tokens=40, options=Options(stop=("end",))
)


def right(branch: Branch) -> float:
    """1 while every line adds the right next number, and is right."""
    total, lines = _NUMBERS[0], []
    for number in _NUMBERS[1:]:
        lines.append(f"{total} + {number} = {total + number}")
        total += number
    written = branch.completion.splitlines()
    return float(written == (lines if branch.is_finished else lines[: len(written)]))


def show_best(result: SearchResult) -> None:
    print(f"{result.best.score:.2f} {result.best.completion!r}" if result.best else "none is whole")
