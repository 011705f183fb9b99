"""A step that is named by a special token, which has no text."""

from __future__ import annotations

from tests.llm.models import EOS_ID, opened
from tests.tiny_model import EOS


def test_it_ends_a_step_and_no_answer() -> None:
    with opened() as llm, llm.tree("hello") as tree:
        [child] = tree.decode(tree.root, step=EOS, ignore_eos=True, logit_bias={EOS_ID: 1e4}, max_tokens=4)
        assert (child.token_ids, child.finish_reason) == ((EOS_ID,), "step")
        assert not child.is_finished
        [stopped] = tree.decode(tree.root, stop=EOS, ignore_eos=True, logit_bias={EOS_ID: 1e4}, max_tokens=4)
        assert stopped.finish_reason == "stop"
