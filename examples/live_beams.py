"""A beam search as it happens: what is final in bold, below it the live beams and which one each continues.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051
"""

import argparse

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from forkdecode import DEFAULT_MODEL, LLM, Beam, BeamUpdate, Client, Committed, Finished

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
parser.add_argument("--prompt", default="Write a sentence about the sea.")
parser.add_argument("--width", type=int, default=4)
parser.add_argument("--max-tokens", type=int, default=48)
args = parser.parse_args()


def view(committed: str, update: BeamUpdate | None, places: dict[int, int]) -> Group:
    """The screen. places: where each beam of the update before stood."""
    table = Table("#", "from", "score", "text after what is final", box=None)
    for place, beam in enumerate(update.beams if update else (), 1):
        origin = places.get(beam.parent_id)
        arrow = "" if origin is None else "=" if origin == place else f"<- {origin}"
        table.add_row(str(place), arrow, f"{beam.score:.3f}", Text(beam.text))
    done = update.finished if update else 0
    return Group(Text(committed, style="bold"), table, Text(f"{done} hypotheses finished", style="dim"))


console = Console()
committed, places = "", dict[int, int]()
with (
    Client(args.server) if args.server else LLM(args.model) as llm,
    Live(console=console, refresh_per_second=20, transient=True) as live,
):
    for event in llm.stream(
        args.prompt, Beam(args.width), chat=True, max_tokens=args.max_tokens, update_beams=0
    ):
        match event:
            case Committed():
                committed += event.text
            case BeamUpdate():
                live.update(view(committed, event, places))
                places = {beam.hypothesis_id: place for place, beam in enumerate(event.beams, 1)}
            case Finished():
                result = event.result
assert result.text.startswith(committed)
console.print(f"{len(committed)} of {len(result.text)} characters were final before the end")
for place, candidate in enumerate(result.candidates, 1):
    console.print(f"{place}. {candidate.score:.3f}", Text(repr(candidate.text)), soft_wrap=True)
