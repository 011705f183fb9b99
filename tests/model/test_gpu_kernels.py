"""The trial of a GPU's kernels when an engine starts, on a CPU, where the reference stands for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from forkdecode.model.gpu_kernels import check_moves, host_reached, kernels_fit, small_step
from forkdecode.model.node_plans import Planners
from forkdecode.model.step_shape import StepShape
from forkdecode_kernels.copy_blocks import copy_blocks
from forkdecode_kernels.node_attention import node_attention
from forkdecode_kernels.node_list import NodeList, check_nodes
from tests.model.driver import make_runner
from tests.models import WINDOW, tiny_model


@pytest.mark.parametrize("size", [1, 4, 16, 128])
def test_the_trial_step_is_a_sound_one(size: int) -> None:
    segments, decodes, num_tokens, num_blocks = small_step(size)
    arrays = Planners(size, torch.device("cpu")).plan(
        (4, 2, 8, None), 4, StepShape(segments, decodes, num_tokens)
    )
    check_nodes(arrays, num_blocks, num_tokens, size)


class TestTrial:
    """The kernels' trial before anything depends on them."""

    def fits(self, model: PreTrainedModel) -> bool:
        runner = make_runner(model)
        return kernels_fit(model, runner.cache, runner._windows, batch_invariant=False)

    @pytest.mark.parametrize(
        ("family", "windows", "softcap", "sinks"),
        [("llama", {None}, False, False), ("gemma2", {None, WINDOW}, True, False),
         ("gpt_oss", {None, WINDOW}, False, True)],
    )  # fmt: skip
    def test_runs_what_the_model_will_run(
        self,
        monkeypatch: pytest.MonkeyPatch,
        family: str,
        windows: set[int | None],
        softcap: bool,
        sinks: bool,
    ) -> None:
        seen = []

        def watched(query: torch.Tensor, kv: torch.Tensor, nodes: NodeList, **options: Any) -> torch.Tensor:
            seen.append((nodes.causal, options))
            return node_attention(query, kv, nodes, **options)

        monkeypatch.setattr("forkdecode.model.gpu_kernels.node_attention", watched)
        assert self.fits(tiny_model(family))
        tried = {(causal, options["window"]) for causal, options in seen}
        assert tried == {(causal, window) for causal in (False, True) for window in windows}
        assert all((options["softcap"] is not None) == softcap for _, options in seen)
        assert all((options["sinks"] is not None) == sinks for _, options in seen)

    def test_kernels_that_fail_are_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*args: object, **kwargs: object) -> None:
            raise RuntimeError("no kernel image is available for execution on the device")

        monkeypatch.setattr("forkdecode.model.gpu_kernels.node_attention", broken)
        assert not self.fits(tiny_model("llama"))

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("fault", ["a row's own token", "nothing is a number"])
    def test_kernels_that_are_wrong_are_not_used(
        self, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, fault: str
    ) -> None:
        def wrong(query: torch.Tensor, kv: torch.Tensor, nodes: NodeList, **options: Any) -> torch.Tensor:
            items = nodes.large_items[: int(nodes.counts[1, 0])]
            own = items[items[:, 3] == 1][:, 2].long()  # items of one token: a row's own
            assert len(own) >= 20
            kv = kv.clone()
            kv[:, :, nodes.blocks[own].long()] = 0 if fault == "a row's own token" else torch.nan
            return node_attention(query, kv, nodes, **options)

        monkeypatch.setattr("forkdecode.model.gpu_kernels.node_attention", wrong)
        assert not self.fits(tiny_model("llama", dtype=dtype))

    @pytest.mark.parametrize("size", [1, 4])
    def test_moves_are_tried_too(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        layer = make_runner(tiny_model("llama"), block_size=size).cache.layer(0)
        check_moves(layer)
        for name, what in (("write_kv", "not written"), ("copy_blocks", "not copied")):
            with monkeypatch.context() as patch:
                patch.setattr(f"forkdecode.model.gpu_kernels.{name}", lambda *_: None)
                with pytest.raises(RuntimeError, match=what):
                    check_moves(layer)

    def test_blocks_go_to_the_host_by_one_launch_where_that_works(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        layer = make_runner(tiny_model("llama")).cache.layer(0)

        def whole(source: torch.Tensor, target: torch.Tensor, pairs: torch.Tensor, *, reached: bool) -> None:
            assert reached
            copy_blocks(source, target, pairs)

        def none(*_: object, reached: bool) -> None:
            pass

        def fails(*_: object, reached: bool) -> None:
            raise ValueError("Pointer argument (at 1) cannot be accessed from Triton (cpu tensor?)")

        for moves, right in ((whole, True), (none, False), (fails, False)):
            monkeypatch.setattr("forkdecode.model.gpu_kernels.copy_blocks", moves)
            assert host_reached(layer) == right
