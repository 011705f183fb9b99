"""Recommendation as generation: the likeliest titles of a catalogue, and nothing but titles of it."""

import sys

from forkdecode import DEFAULT_MODEL, LLM, Beam, DiverseBeam, FromCatalogue, build_catalogue

TITLES = (
    "Moby-Dick", "Pride and Prejudice", "A Tale of Two Cities", "Dracula", "Frankenstein", "The Time Machine",
    "Around the World in Eighty Days", "Twenty Thousand Leagues Under the Seas", "Treasure Island",
    "The Call of the Wild", "The War of the Worlds", "Robinson Crusoe", "The Three Musketeers", "Emma",
)  # fmt: skip
PROMPT = "Books I liked: The Island of Doctor Moreau, From the Earth to the Moon.\nMy next book:"

with LLM(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_MODEL) as llm:
    assert llm.tokenizer is not None
    # An item follows the prompt's colon, so it begins with a space. Large catalogues are built once, by
    # `forkdecode catalogue build`, and opened from their files.
    items = [llm.tokenizer.encode(f" {title}", add_special_tokens=False) for title in TITLES]
    llm.catalogues.put("books", build_catalogue(items, TITLES))
    books = FromCatalogue("books")
    diverse = DiverseBeam(width=6, groups=6, diversity_penalty=5.0)
    for strategy in (Beam(width=5), diverse, Beam(width=50)):
        result = llm.decode(PROMPT, strategy, constraint=books, max_tokens=max(map(len, items)) + 1)
        print(f"{type(strategy).__name__}({strategy.width}): {len(result.candidates)} titles", end="")
        print(", all there are" if result.exhausted else "")
        for candidate in result.candidates[:5]:
            print(f"  {candidate.score:6.2f} {candidate.item}")
