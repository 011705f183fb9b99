"""Writing keys and values into slots, and moving whole blocks."""

from __future__ import annotations

import pytest
import torch

from forkdecode_kernels import copy_blocks as copying
from forkdecode_kernels.copy_blocks import copy_blocks, zero_blocks
from forkdecode_kernels.write_kv import write_kv


def test_blocks_go_between_devices_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = torch.randn(3, 2, 2, 9, 4, 8), torch.zeros(3, 2, 2, 7, 4, 8)
    gathered = []
    select = torch.Tensor.index_select

    def counted(pool: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
        gathered.append(len(index))
        return select(pool, dim, index)

    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    monkeypatch.setattr(copying.cpu, "copy_blocks", lambda *_: False)
    monkeypatch.setattr(copying, "PIECE_BYTES", 2 * 3 * 2 * 2 * 4 * 8 * 4 + 1)  # two blocks
    pairs = torch.tensor([[8, 0], [1, 6], [3, 2], [4, 5], [0, 1]])
    copy_blocks(source, target, pairs)
    assert gathered == [2, 2, 1]
    assert torch.equal(target[..., pairs[:, 1], :, :], source[..., pairs[:, 0], :, :])


def test_write_kv_fills_slots_and_leaves_padding_out() -> None:
    kv = torch.zeros(2, 3, 5, 4, 8)
    key, value = torch.randn(3, 6, 8), torch.randn(3, 6, 8)
    slots = torch.tensor([19, 0, 7])
    write_kv(kv, key, value, slots)
    want = torch.zeros_like(kv)
    for token, slot in enumerate(slots.tolist()):
        want[0, :, slot // 4, slot % 4], want[1, :, slot // 4, slot % 4] = key[:, token], value[:, token]
    assert torch.equal(kv, want)


def test_write_kv_leaves_out_tokens_without_a_slot() -> None:
    kv = torch.zeros(2, 2, 3, 4, 8)
    key, value = torch.randn(2, 2, 4, 8).unbind(0)
    write_kv(kv, key, value, torch.tensor([5, -1, 0, -1]))
    flat = kv.flatten(2, 3)
    assert torch.equal(flat[0][:, [5, 0]], key[:, [0, 2]])
    assert torch.equal(flat[1][:, [5, 0]], value[:, [0, 2]])
    assert int(flat[0].abs().sum(-1).bool().sum()) == 4


def test_write_kv_takes_strided_heads() -> None:
    kv = torch.zeros(2, 3, 5, 4, 8)
    packed = torch.randn(6, 3 * 8 * 2)
    key, value = (x.view(6, 3, 8).transpose(0, 1) for x in packed.split(24, 1))
    write_kv(kv, key, value, torch.arange(6))
    assert torch.equal(kv.flatten(2, 3)[0, :, :6], key)
    assert torch.equal(kv.flatten(2, 3)[1, :, :6], value)


@pytest.mark.parametrize(
    ("key", "slots", "problem"),
    [
        (torch.zeros(2, 6, 8), torch.arange(3), "must be \\[3, T, 8\\]"),
        (torch.zeros(3, 6, 8), torch.arange(7), "n <= 6"),
        (torch.zeros(3, 6, 8), torch.arange(3, dtype=torch.int32), "int64"),
        (torch.zeros(3, 6, 8, dtype=torch.bfloat16), torch.arange(3), "must be torch.float32"),
    ],
)
def test_write_kv_names_what_is_wrong(key: torch.Tensor, slots: torch.Tensor, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        write_kv(torch.zeros(2, 3, 5, 4, 8), key, key, slots)


@pytest.mark.parametrize(
    ("block", "dtype"),
    [
        ((4, 8), torch.float32),
        ((4, 8), torch.bfloat16),
        ((3, 5), torch.bfloat16),  # 30 bytes: no whole number of words
        ((64, 256), torch.float32),  # enough for several threads
    ],
)
def test_copy_blocks_moves_all_layers_and_nothing_else(block: tuple[int, int], dtype: torch.dtype) -> None:
    pool = torch.randn(4, 2, 3, 6, *block).to(dtype)
    before = pool.clone()
    copy_blocks(pool, pool, torch.tensor([[0, 5], [0, 2], [3, 1]]))
    want = before.clone()
    for source, target in ((0, 5), (0, 2), (3, 1)):
        want[:, :, :, target] = before[:, :, :, source]
    assert torch.equal(pool, want)
    copy_blocks(pool, pool, torch.empty(0, 2, dtype=torch.int64))
    assert torch.equal(pool, want)


def test_copy_blocks_between_pools_and_zero() -> None:
    source, target = torch.randn(2, 2, 3, 6, 4, 8), torch.zeros(2, 2, 3, 9, 4, 8)
    copy_blocks(source, target, torch.tensor([[1, 8]]))
    assert torch.equal(target[:, :, :, 8], source[:, :, :, 1])
    assert target[:, :, :, :8].count_nonzero() == 0
    zero_blocks(source, torch.tensor([1, 4]))
    assert source[:, :, :, [1, 4]].count_nonzero() == 0
    assert source[:, :, :, [0, 2, 3, 5]].count_nonzero() > 0


def test_copy_blocks_names_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="unlike blocks"):
        copy_blocks(torch.zeros(2, 6, 4, 8), torch.zeros(3, 6, 4, 8), torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match="pairs"):
        copy_blocks(torch.zeros(2, 6, 4, 8), torch.zeros(2, 6, 4, 8), torch.zeros(2, dtype=torch.int64))
