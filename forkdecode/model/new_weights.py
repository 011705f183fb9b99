"""Other weights for a model that an engine has taken: what they must be like, and making a model of them."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from forkdecode.checks import shown
from forkdecode.errors import invalid
from forkdecode.model.info import ModelInfo
from forkdecode.model.loader import LoadedModel, adopt, check_not_taken, load
from forkdecode.model.weights import shape, some

NAMES = "the names, shapes and dtypes of the model's state_dict()"
_NO_TOKENIZER = object()


@dataclass(frozen=True, slots=True)
class ModelForm:
    """A loaded model without its numbers.

    skeleton: a copy of it whose parameters have shapes and dtypes, but no memory; its buffers have theirs.
    None of a model that can't be copied.
    """

    kind: type[PreTrainedModel]
    shapes: Mapping[str, torch.Size]
    skeleton: PreTrainedModel | None
    device: torch.device
    info: ModelInfo

    @staticmethod
    def of(loaded: LoadedModel) -> ModelForm:
        """Of a model that no engine has taken yet."""
        model = loaded.model
        device = next(model.parameters()).device
        return ModelForm(type(model), _shapes(model), _skeleton(model), device, loaded.info)

    def filled(self, weights: Any) -> PreTrainedModel:
        """A model of this form with other weights.

        weights: as LLM.update_weights takes them. Raises InvalidRequestError naming what differs, and what
        load() and adopt() raise.
        """
        if isinstance(weights, Mapping):
            return self._made_of(weights)
        settings: dict[str, Any] = {"max_positions": self.info.max_positions}
        if isinstance(weights, PreTrainedModel):
            check_not_taken(weights)
            self._check(weights)
            loaded = adopt(weights, None, self.info.dtype, str(self.device), **settings)
        elif isinstance(weights, (str, os.PathLike)) and os.fspath(weights):
            name = os.fspath(weights)
            loaded = load(name, self.info.dtype, str(self.device), tokenizer=_NO_TOKENIZER, **settings)
            self._check(loaded.model)
        else:
            allowed = "a name, a folder, a transformers model, or a mapping of names to tensors"
            raise invalid("weights", f"{shown(weights)} is none", allowed)
        self._check_info(loaded.info)
        return loaded.model

    def _check(self, model: PreTrainedModel) -> None:
        if type(model) is not self.kind:
            raise invalid("weights", f"are a {type(model).__name__}'s", f"a {self.kind.__name__}'s")
        found = _shapes(model)
        _refuse("lack", [name for name in self.shapes if name not in found])
        _refuse("have no place for", [name for name in found if name not in self.shapes])
        _refuse("differ:", [
            f"{name} is {shape(found[name])} instead of {shape(size)}"
            for name, size in self.shapes.items() if found[name] != size
        ])  # fmt: skip

    def _check_info(self, info: ModelInfo) -> None:
        for field in dataclasses.fields(ModelInfo):
            there, own = getattr(info, field.name), getattr(self.info, field.name)
            if field.name != "name" and there != own:
                raise invalid("weights", f"{field.name} of their model is {shown(there)}", shown(own))

    # -- a mapping --------------------------------------------------------------------------------

    def _made_of(self, weights: Mapping[str, Any]) -> PreTrainedModel:
        """All is checked before anything is copied."""
        if self.skeleton is None:
            raise invalid("weights", "of this model can't be a mapping, for it can't be copied", "a model")
        wanted, ties = self.skeleton.state_dict(), _ties(self.skeleton)
        given = {name: [each for each in ties[name] if each in weights] for name in wanted}
        _refuse("have no place for", [shown(name) for name in weights if name not in wanted])
        _refuse("lack", [name for name, sources in given.items() if not sources])
        wrong = [_problem(name, weights[name], wanted[name]) for name in wanted if name in weights]
        _refuse("differ:", [problem for problem in wrong if problem is not None])
        made: dict[str, torch.Tensor] = {}
        for name, (source, *others) in given.items():
            first = ties[name][0]
            if first not in made:
                made[first] = _copied(source, weights[source], wanted[name], self.device)
                for other in others:
                    _check_tied(source, other, weights[other], made[first])
            made[name] = made[first]
        model = copy.deepcopy(self.skeleton)
        model.load_state_dict(made, assign=True)
        return model


def _shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def _skeleton(model: PreTrainedModel) -> PreTrainedModel | None:
    """As copy.deepcopy, to which parameters without memory are told to be copied already: so hooks, settings
    and ties are all the model's."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=False)
    try:
        return copy.deepcopy(model, memo)
    except Exception:  # a caller's model may hold anything
        return None


def _ties(model: PreTrainedModel) -> dict[str, list[str]]:
    """By name in the state_dict(), all names of the same tensor, in the same order for each."""
    names: dict[int, list[str]] = defaultdict(list)
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        names[id(tensor)].append(name)
    return {name: names[id(tensor)] for name, tensor in state.items()}


def _problem(name: str, given: Any, wanted: torch.Tensor) -> str | None:
    if not isinstance(given, torch.Tensor):
        return f"{name} is {shown(given)}, which is no tensor"
    kind = type(given.detach())
    if kind is not torch.Tensor or given.is_meta or given.layout != torch.strided:
        return f"{name} is no plain tensor in memory"
    if given.shape != wanted.shape:
        return f"{name} is {shape(given.shape)} instead of {shape(wanted.shape)}"
    floats = wanted.is_floating_point() and given.is_floating_point() and given.element_size() > 1
    if given.dtype != wanted.dtype and not floats:
        return f"{name} is {_word(given.dtype)} instead of {_word(wanted.dtype)}"
    return None


def _copied(name: str, given: torch.Tensor, wanted: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Raises InvalidRequestError for a parameter that is not finite; buffers, which have memory, may be."""
    made = given.detach().to(device, wanted.dtype, copy=True, memory_format=torch.contiguous_format)
    if wanted.is_meta and made.is_floating_point() and not _finite(made):
        raise invalid("weights", f"{name} has NaN or infinite numbers as {_word(made.dtype)}", "finite ones")
    return made


def _finite(numbers: torch.Tensor) -> bool:
    """The sum says so of nearly all, in a fraction of the time."""
    return bool(numbers.sum(dtype=torch.float32).isfinite()) or bool(numbers.isfinite().all())


def _check_tied(name: str, other: str, given: torch.Tensor, made: torch.Tensor) -> None:
    if not torch.equal(given.detach().to(made.device, made.dtype), made):
        raise invalid("weights", f"{name} and {other} differ, and the model has one for both", "equal ones")


def _refuse(problem: str, names: list[str]) -> None:
    if names:
        raise invalid("weights", f"{problem} {some(sorted(names))}", NAMES)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
