"""What the searches share beside their tasks, for search_*.py: arguments, the tree, what was spent."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from forkdecode import DEFAULT_MODEL, LLM, Client, Tree
from forkdecode.search import SearchResult


def parser(description: str | None) -> argparse.ArgumentParser:
    """The model to run in this process, or the server to ask."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("model", nargs="?", default=DEFAULT_MODEL)
    made.add_argument("--server", metavar="HOST:PORT")
    return made


@contextmanager
def opened(args: argparse.Namespace, prompt: str) -> Iterator[Tree]:
    """A tree on the prompt, from the model or server that the arguments name."""
    with Client(args.server) if args.server else LLM(args.model) as llm, llm.tree(prompt, seed=1) as tree:
        yield tree


def show_spent(result: SearchResult) -> None:
    spent = result.spent
    print(f"{spent.tokens} tokens in {spent.nodes} branches, {len(result.finished)} of them finished")
