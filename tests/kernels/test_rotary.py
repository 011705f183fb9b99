"""What compiled code reads of heads' weights is checked before."""

from __future__ import annotations

import pytest
import torch

from forkdecode_kernels.rotary import split_rotate_write


@pytest.mark.parametrize(("dtype", "both"), [(torch.float32, False), (torch.bfloat16, True)])
def test_head_weights_that_are_not_whole_are_refused(dtype: torch.dtype, both: bool) -> None:
    weight = torch.ones(16, dtype=dtype)
    with pytest.raises(ValueError, match="weight"):
        split_rotate_write(
            torch.ones(1, 48),
            torch.zeros(2, 1, 2, 4, 16),
            torch.ones(1, 8),
            torch.zeros(1, 8),
            torch.zeros(1, dtype=torch.int64),
            weight,
            weight if both else None,
        )
