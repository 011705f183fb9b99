"""The programs that README.md and docs show: what they import is there, and takes what they give it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forkdecode import LLM, AsyncTree, Client, Tree
from forkdecode.types import OPTION_NAMES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OPTIONS = {*OPTION_NAMES, "prefix_allowed_tokens_fn"}
KINDS: dict[str, tuple[Any, ...]] = {"llm": (LLM, Client), "tree": (Tree, AsyncTree)}
"""What the programs call by these names, and can be any of them."""


def programs() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, program in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)):
            yield f"{page.stem}-{number}", program


PROGRAMS = dict(programs())


def imported(program: ast.Module) -> dict[str, Any]:
    """Each name that is imported of forkdecode; raises where it isn't there."""
    return {
        alias.name: getattr(importlib.import_module(node.module or ""), alias.name)
        for node in ast.walk(program)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "forkdecode"
        for alias in node.names
    }


def check(function: Any, call: ast.Call, also: set[str]) -> None:
    """The call's keywords are the function's, or `also` where it hands on others."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        allowed = {*parameters, *also}
    else:
        allowed = set(parameters)
    assert {keyword.arg for keyword in call.keywords} <= allowed, ast.unparse(call)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_names_what_there_is(name: str) -> None:
    program = ast.parse(PROGRAMS[name])
    names = imported(program)
    for call in (node for node in ast.walk(program) if isinstance(node, ast.Call)):
        match call.func:
            case ast.Name(id) if id in names:
                check(names[id], call, set())
            case ast.Attribute(ast.Name(id), verb) if id in KINDS:
                for kind in KINDS[id]:
                    check(getattr(kind, verb), call, OPTIONS)


def test_there_are_programs_of_most_pages() -> None:
    assert {name.rpartition("-")[0] for name in PROGRAMS} >= {
        "README", "client", "constraints", "search", "strategies",
    }  # fmt: skip
