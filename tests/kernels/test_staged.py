"""Memory that one copy fills; on a CPU both its sides are one."""

from __future__ import annotations

import torch

from forkdecode_kernels.staged import StagedMemory

CPU = torch.device("cpu")


def test_parts_have_their_sizes_and_do_not_meet() -> None:
    memory = StagedMemory([24, 0, 3, 40], CPU)
    assert [len(part.device) for part in memory.parts] == [24, 0, 3, 40]
    for value, part in enumerate(memory.parts, 1):
        assert part.device.data_ptr() % 16 == memory.parts[0].device.data_ptr() % 16 or not len(part.device)
        assert not part.host.any()
        part.host.fill_(value)
    memory.begin()
    memory.send()
    for value, part in enumerate(memory.parts, 1):
        assert (part.device == value).all()


def test_parts_of_wider_numbers() -> None:
    memory = StagedMemory([4, 16], CPU)
    numbers = memory.parts[1].host.view(torch.int64)
    numbers[:] = torch.tensor([7, -1])
    memory.send()
    assert memory.parts[1].device.view(torch.int64).tolist() == [7, -1]


def test_nothing_at_all() -> None:
    memory = StagedMemory([], CPU)
    memory.begin()
    memory.send()
    assert memory.parts == ()
