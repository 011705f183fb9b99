"""torch's default dtype is the process's, and transformers' from_pretrained changes it while it builds a
model. A second model loaded beside a running engine must change nothing, least of all the size of memory that
compiled code writes to by its address."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from forkdecode.model.lean_tape import _Memory
from forkdecode_kernels.attention import attention, plan_attention
from forkdecode_kernels.attention_work import AttentionWork
from forkdecode_kernels.cpu.operands import Operands
from forkdecode_kernels.layer_tape import LayerTape
from tests.kernels.attention_cases import Segment
from tests.model.driver import Driver
from tests.model.test_lean import trace, vary
from tests.models import tiny_model

ROOT = Path(__file__).parent.parent
OF_FLOATS = {"zeros", "empty", "ones", "full", "rand", "randn", "linspace", "eye"}


@contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_memory_that_compiled_code_writes_to_is_float32(dtype: torch.dtype) -> None:
    hidden, kv = torch.zeros(3, 8, dtype=torch.float32), torch.zeros(2, 1, 1, 4, 8, dtype=torch.float32)
    query = hidden.view(1, 3, 8)
    with default(dtype):
        memory = _Memory(hidden).of("qkv", 8)
        scratch = Operands(query, kv, query, 1.0, 0.0, None).scratch(3)
        wide = LayerTape()._widened(hidden.bfloat16())
    assert {memory.dtype, scratch.dtype, wide.dtype} == {torch.float32}


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_steps_under_another_default_have_the_same_bits(family: str) -> None:
    want = trace(Driver(vary(tiny_model(family)), block_size=8))[1]
    driver = Driver(vary(tiny_model(family)), block_size=8)
    with default(torch.bfloat16):
        got = trace(driver)[1]
    assert torch.equal(got, want)


def test_a_long_prompt_s_attention_under_another_default_has_the_same_bits() -> None:
    """Pieces behind position 512, whose running maximum is float32."""
    generator, size = torch.Generator().manual_seed(1), 16
    blocks = np.arange(40, dtype=np.int32)
    work = AttentionWork((Segment(0, 5, 600, blocks),), (), 5, size, 40)
    kv = torch.randn(2, 2, 41, size, 16, generator=generator).half()
    query = torch.randn(4, 5, 16, generator=generator).half()
    plan = plan_attention(work, num_heads=4, kv=kv)
    want = attention(query, kv, plan, scale=0.25)
    with default(torch.bfloat16):
        got = attention(query, kv, plan, scale=0.25)
    assert torch.equal(got, want)


def test_every_tensor_of_floats_names_its_dtype() -> None:
    unnamed = []
    for file in (*(ROOT / "forkdecode").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")):
        for call in filter(makes_floats, ast.walk(ast.parse(file.read_text()))):
            named = {k.arg for k in call.keywords}  # type: ignore[attr-defined]
            if not named & {"dtype", None}:
                unnamed.append(f"{file.relative_to(ROOT)}: {ast.unparse(call)}")
    assert unnamed == []


def makes_floats(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in OF_FLOATS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
    )
