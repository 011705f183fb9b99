"""After warm_up nothing is left to compile, and the cache is as it was. In a process of its own: in this
one other tests have compiled before."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from forkdecode_kernels.cpu import layer_work, products, row_work, segment_work
from tests.model.driver import Driver, StepBuilder
from tests.models import tiny_model

family, dtype = sys.argv[1], getattr(torch, sys.argv[2])
driver = Driver(tiny_model(family, dtype=dtype))
driver.runner.warm_up()
works = [products._work, row_work._work, segment_work._work]
works += [layer_work.norm_work, layer_work.gate_work, layer_work.rotate_work, layer_work.widen_work]
made = [work.cache_info().currsize for work in works]
assert made[1] and made[2]
assert all(not driver.runner.cache.layer(i).any() for i in range(2))
group = driver.open(list(range(40)))
driver.prefill(group, [30, 9])
driver.fork(group, [0, 0, 0], [1, 2, 3])
driver.decode(group)
assert [work.cache_info().currsize for work in works] == made
"""


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", "float32"), ("gemma3", "bfloat16"), ("gpt2", "float32")],
)
def test_nothing_is_compiled_after_warm_up(family: str, dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, family, dtype], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
