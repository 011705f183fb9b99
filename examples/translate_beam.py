"""Translation with a beam: short and exact answers are what beam search is for.

Runs the model in this process, or asks a server: --server 127.0.0.1:50051
"""

import argparse

from forkdecode import DEFAULT_MODEL, LLM, Beam, Client

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("model", nargs="?", default=DEFAULT_MODEL)
parser.add_argument("--server", metavar="HOST:PORT")
args = parser.parse_args()

sentences = ["Good morning.", "Where is the station?", "I would like a cup of tea."]
task = "Translate to French. Answer with the translation alone."
chats = [
    [{"role": "system", "content": task}, {"role": "user", "content": sentence}] for sentence in sentences
]

with Client(args.server) if args.server else LLM(args.model) as llm:
    # Nothing but EOS ends a translation: one that stops at a newline, too, would come out twice.
    results = llm.decode(
        chats,
        Beam(width=5, num_return_sequences=3, length_penalty=0.0, early_stopping=True),
        max_tokens=24,
        bad_words=["\n", "\n\n"],
    )
    for sentence, result in zip(sentences, results, strict=True):
        print(sentence)
        for candidate in result.candidates:
            print(f"  {candidate.score:.3f} {candidate.text!r}")
