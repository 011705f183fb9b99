"""A model filled with other weights is the model that they are of, whatever its family."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from forkdecode.errors import InvalidRequestError
from forkdecode.model.loader import LoadedModel, adopt
from forkdecode.model.new_weights import ModelForm
from forkdecode.model.prepared import Preparing
from tests.model.driver import Driver, model_info
from tests.model.test_int8 import needs_vnni
from tests.models import FAMILIES, tiny_model

PROMPT = list(range(3, 40))


def form_of(model: PreTrainedModel) -> ModelForm:
    return ModelForm.of(LoadedModel(model, None, model_info(model)))


def said(driver: Driver) -> torch.Tensor:
    return driver.prefill(driver.open(PROMPT))


def check_replaced(family: str, dtype: torch.dtype, **how: Any) -> None:
    old, policy = tiny_model(family, dtype=dtype), tiny_model(family, seed=1, dtype=dtype)
    form, info = form_of(old), model_info(old)
    driver = Driver(old, **how)
    before = said(driver)
    made = form.filled(policy.state_dict())
    prepare = Preparing(dtype, torch.device("cpu"), **how)
    driver.runner.replace(prepare(made, info.vocab_size))
    found = said(driver)
    assert torch.equal(found, said(Driver(policy, **how)))
    assert not torch.equal(found, before)


@pytest.mark.parametrize("decoder", ["auto", "generic"])
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_runner_computes_what_a_new_one_does(family: str, decoder: str) -> None:
    check_replaced(family, torch.float32, decoder=decoder)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt_oss"])
def test_in_bfloat16(family: str) -> None:
    check_replaced(family, torch.bfloat16)


@needs_vnni
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_in_8_bits(family: str, dtype: torch.dtype) -> None:
    check_replaced(family, dtype, weights="int8")


def test_a_form_holds_no_weights_and_gives_models_of_their_own() -> None:
    policy = tiny_model("llama", seed=1)
    form = form_of(tiny_model("llama"))
    assert form.skeleton is not None
    assert all(each.is_meta for each in form.skeleton.parameters())
    one, other = form.filled(policy.state_dict()), form.filled(policy.state_dict())
    places = {each.data_ptr() for model in (policy, one, other) for each in model.parameters()}
    assert len(places) == 3 * len(list(policy.parameters()))


def test_what_a_caller_put_around_a_model_stays_there() -> None:
    model = tiny_model("llama")
    model.lm_head.register_forward_hook(lambda module, args, output: 2 * output)
    state = tiny_model("llama", seed=1).state_dict()
    ids = torch.tensor([PROMPT])
    plain, made = form_of(tiny_model("llama")).filled(state), form_of(model).filled(state)
    assert torch.equal(made(ids).logits, 2 * plain(ids).logits)


def test_a_model_that_cant_be_copied_takes_models_alone() -> None:
    model = tiny_model("llama")
    model.lock = threading.Lock()  # type: ignore[assignment]
    form, policy = form_of(model), tiny_model("llama", seed=1)
    with pytest.raises(InvalidRequestError, match="can't be copied"):
        form.filled(policy.state_dict())
    form._check(policy)


def test_a_model_in_training_is_taken_without_its_dropout() -> None:
    form = ModelForm.of(adopt(tiny_model("gpt2")))
    policy, ids = tiny_model("gpt2", seed=1), torch.tensor([PROMPT])
    want = policy(ids).logits
    assert torch.equal(form.filled(policy.train())(ids).logits, want)


def test_a_model_of_another_class_is_refused() -> None:
    with pytest.raises(
        InvalidRequestError, match="are a MistralForCausalLM's; allowed: a LlamaForCausalLM's"
    ):
        form_of(tiny_model("llama")).filled(tiny_model("mistral"))
