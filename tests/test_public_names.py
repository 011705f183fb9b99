"""Whoever writes a function around ours can name, from `forkdecode`, all that stands in our signatures."""

from __future__ import annotations

import ast
import builtins
import importlib.metadata
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forkdecode
from forkdecode import LLM, AsyncClient, AsyncLLM, AsyncTree, Client, EventStream, Handle, Node, Tree

ENGINES = (LLM, AsyncLLM, Client, AsyncClient)
OWNERS = (*ENGINES, Tree, AsyncTree, Node, Handle, forkdecode.AsyncHandle, EventStream)
FUNCTIONS = (forkdecode.build_catalogue, forkdecode.open_catalogue, forkdecode.save_catalogue)
OTHERS = {"PreTrainedModel", "NDArray", "np", "torch"}
"""Of transformers, numpy and torch."""


def verbs() -> Iterator[Callable[..., Any]]:
    yield from FUNCTIONS
    for owner in OWNERS:
        for name, member in vars(owner).items():
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            made_by_callers = name == "__init__" and owner in ENGINES
            # `create` takes what the constructor does.
            if inspect.isfunction(function) and (made_by_callers or name[0] != "_") and name != "create":
                yield function


def names(annotation: Any) -> set[str]:
    """What a type is made of; the name of a module before a dot counts."""
    found = set()
    for node in ast.walk(ast.parse(str(annotation), mode="eval")):
        if isinstance(node, ast.Name):
            found.add(node.id)
    return found


def is_of_the_standard_library(name: str, function: Callable[..., Any]) -> bool:
    found = vars(sys.modules[function.__module__]).get(name)
    module = found.__name__ if inspect.ismodule(found) else getattr(found, "__module__", "")
    return module.partition(".")[0] in sys.stdlib_module_names


@pytest.mark.parametrize("function", tuple(verbs()), ids=lambda function: function.__qualname__)
def test_a_signature_is_of_public_names(function: Callable[..., Any]) -> None:
    mentioned = set().union(*map(names, function.__annotations__.values()))
    unknown = {
        name
        for name in mentioned - set(forkdecode.__all__) - set(dir(builtins)) - OTHERS
        if not is_of_the_standard_library(name, function)
    }
    assert not unknown


def test_the_version_is_the_projects() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert forkdecode.__version__ == importlib.metadata.version("forkdecode") == project["version"]


def test_names_that_are_imported_when_used_are_all_public() -> None:
    assert set(forkdecode._LAZY) <= set(forkdecode.__all__)
    assert len(set(forkdecode.__all__)) == len(forkdecode.__all__)
