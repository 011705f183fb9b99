"""Steps of a trial are such as a scheduler plans, whatever the cache and the model are like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from forkdecode.kv.forest_plan import ForestPlan
from forkdecode.model.node_plans import Planners
from forkdecode.model.step_shape import StepShape
from forkdecode.model.trial_steps import TrialSteps
from forkdecode.step import StepPlan
from forkdecode_kernels.node_list import check_nodes


def listed(plan: StepPlan, block_size: int) -> ForestPlan:
    shape = StepShape(plan.segments, plan.decodes, len(plan.token_ids))
    return Planners(block_size, torch.device("cpu")).plan((4, 2, 8, None), 4, shape)


@pytest.mark.parametrize("count", [16, 1024])
@pytest.mark.parametrize(
    ("block_size", "num_blocks", "positions"), [(1, 600, 4096), (16, 600, 4096), (16, 1, 20), (128, 3, 300)]
)
def test_trial_steps_are_sound(count: int, block_size: int, num_blocks: int, positions: int) -> None:
    steps = TrialSteps(block_size, num_blocks, positions, 100)
    prompt = steps.prompt()
    assert (prompt.slots // block_size).max() == steps.blocks[-1] < num_blocks
    for plan in (prompt, steps.prompts(count), *(plan for pair in steps.pairs(count) for plan in pair)):
        check_nodes(listed(plan, block_size), num_blocks, len(plan.token_ids), block_size)
        assert plan.positions.max() < positions
        covered = sum(s.token_count for s in plan.segments) + sum(d.rows for d in plan.decodes)
        assert covered == len(plan.token_ids)
    for one, other in steps.pairs(count):
        assert not np.array_equal(one.token_ids, other.token_ids)
        assert np.array_equal(listed(one, block_size).blocks, listed(other, block_size).blocks)
