"""The configurations that are compiled ahead of time: every kernel, whole, and each under one name."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

pytest.importorskip("triton")

from triton.runtime import JITFunction

import forkdecode_kernels.triton as package
from benchmarks.aot_config import Config
from benchmarks.aot_configs import shipped
from forkdecode_kernels.node_attention import HEAD_DIMS
from forkdecode_kernels.triton.tiles import Family

FAMILIES: tuple[Family, ...] = ("ampere", "cuda", "blackwell", "amd")


def kernels() -> dict[str, JITFunction]:
    """All that are launched, by name: device functions have no such name."""
    modules = [
        importlib.import_module(f"{package.__name__}.{m.name}")
        for m in pkgutil.iter_modules(package.__path__)
    ]
    found = [v for m in modules for v in vars(m).values() if isinstance(v, JITFunction)]
    return {f.__name__: f for f in found if f.__name__.endswith("_kernel")}


@pytest.fixture(scope="module", params=FAMILIES)
def configs(request: pytest.FixtureRequest) -> list[Config]:
    return shipped(request.param)


def test_no_kernel_is_left_out(configs: list[Config]) -> None:
    assert {c.kernel.__name__ for c in configs} == set(kernels())
    names = [c.name for c in configs]
    assert len(set(names)) == len(names)


def test_every_constant_and_no_other_has_a_value(configs: list[Config]) -> None:
    for config in configs:
        wanted = {p.name for p in config.kernel.params if p.is_constexpr}
        assert set(config.constants) == wanted, config.name
        known = set(config.kernel.arg_names)
        assert {*config.types, *config.aligned, *config.unaligned} <= known, config.name
        assert list(config.signature()) == list(config.kernel.arg_names)


def test_head_dims_block_sizes_and_groups(configs: list[Config]) -> None:
    for kernel in ("node_attention_kernel", "paged_decode_kernel"):
        own = [c.constants for c in configs if c.kernel.__name__ == kernel]
        assert {c["HEAD_DIM"] for c in own} == set(HEAD_DIMS)
        assert {c["BLOCK_SIZE"] for c in own} >= {1, 16, 128}
        assert {c["GROUP"] for c in own} >= {1, 4, 7, 24, 71, 128}
        assert all(c["SHARE"] <= min(c["GROUP"], c["BLOCK_M"]) for c in own)
        assert any(c["SHARE"] < c["GROUP"] for c in own)
    splits = [c.constants["NUM_SPLITS"] for c in configs if c.kernel.__name__ == "paged_decode_kernel"]
    assert set(splits) == {1, 8}
    moved = [c for c in configs if c.kernel.__name__ in ("copy_blocks_kernel", "write_kv_kernel")]
    assert {t for c in moved for t in c.types.values()} == {"*i16", "*i32"}


def test_strides_are_taken_for_aligned_unless_they_are_named() -> None:
    (odd,) = [c for c in shipped("cuda") if c.name == "beam_topk collect bf16 odd rows"]
    (even,) = [c for c in shipped("cuda") if c.name == "beam_topk collect bf16"]
    assert set(even.hinted()) - set(odd.hinted()) == {"stride_row", "vocab"}


def test_a_few_of_them_are_the_quick_ones() -> None:
    quick = [c.name for c in shipped("cuda", quick=True)]
    assert set(quick) <= {c.name for c in shipped("cuda")}
    assert len(quick) == 5
