"""A reward model of transformers as a verifier."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from typing import Any

from forkdecode.checks import check_int, check_unicode
from forkdecode.errors import invalid
from forkdecode.search.branch import Branch


class ClassifierVerifier:
    """A sequence-classification model of transformers: its logit if it has one label (a reward model), else
    the probability of `label` by softmax. With sigmoid=True a single logit becomes a number from 0 to 1.

    model: a folder or hub id, opened with its tokenizer when first asked, or a loaded model and `tokenizer`.
    template: the model's input; "{completion}" in it is replaced by the branch's. Texts are cut on the left
    to what the model can read. Needs torch and transformers, imported when first asked.
    """

    def __init__(
        self,
        model: Any,
        *,
        tokenizer: Any = None,
        template: str = "{completion}",
        label: int = 1,
        sigmoid: bool = False,
        batch_size: int = 16,
        device: str = "cpu",
    ) -> None:
        if "{completion}" not in check_unicode("template", template):
            raise invalid("template", "has no place for the branch", "a text with {completion}")
        if not isinstance(model, str) and not hasattr(model, "__fspath__") and tokenizer is None:
            raise invalid("tokenizer", "is missing", "that of the model, if the model is a loaded one")
        self._model = model
        self._tokenizer = tokenizer
        self._template = template
        self._label = check_int("label", label, 0)
        self._sigmoid = sigmoid
        self._batch_size = check_int("batch_size", batch_size, 1)
        self._device = device
        self._ready = False

    def __call__(self, branches: Sequence[Branch]) -> list[float]:
        """The scores. Raises InvalidRequestError for a label that the model does not have, and for files that
        lack weights, such as those of a model that was never trained to classify."""
        self._open()
        texts = [self._template.replace("{completion}", branch.completion) for branch in branches]
        scores: list[float] = []
        for first in range(0, len(texts), self._batch_size):
            scores += self._scores(texts[first : first + self._batch_size])
        return scores

    def _open(self) -> None:
        if self._ready:
            return
        if isinstance(self._model, str) or hasattr(self._model, "__fspath__"):
            name = os.fspath(self._model)
            if self._tokenizer is None:
                self._tokenizer = _tokenizer_of(name)
            self._model = _whole(name)
        labels = self._model.config.num_labels
        if labels > 1 and self._label >= labels:
            raise invalid("label", f"{self._label} of {labels} labels", f"0 to {labels - 1}")
        self._model.to(self._device).eval()
        self._ready = True

    def _scores(self, texts: list[str]) -> list[float]:
        """By rows of their own length if the tokenizer has no padding token."""
        torch = importlib.import_module("torch")
        groups = [texts] if self._tokenizer.pad_token is not None else [[text] for text in texts]
        scores: list[float] = []
        for group in groups:
            inputs = self._encoded(group)
            with torch.inference_mode():
                logits = self._model(**inputs).logits.float()
            if logits.shape[1] > 1:
                found = logits.softmax(-1)[:, self._label]
            else:
                found = logits[:, 0].sigmoid() if self._sigmoid else logits[:, 0]
            scores += found.tolist()
        return scores

    def _encoded(self, texts: list[str]) -> Any:
        limit = getattr(self._model.config, "max_position_embeddings", None)
        self._tokenizer.truncation_side = "left"
        return self._tokenizer(
            texts,
            return_tensors="pt",
            padding=len(texts) > 1,
            truncation=limit is not None,
            max_length=limit,
        ).to(self._device)


def _tokenizer_of(name: str) -> Any:
    own = importlib.import_module("forkdecode.model.own_tokenizer")
    found = own.open_tokenizer(name, local=os.path.isdir(name))
    if found is None:
        raise invalid("tokenizer", f"is missing: {name!r} has none", "one for this model")
    return found


def _whole(name: str) -> Any:
    """A model with all of its weights: transformers fills those that are in no file with random numbers."""
    kind = importlib.import_module("transformers").AutoModelForSequenceClassification
    model, told = kind.from_pretrained(name, output_loading_info=True)
    missing = sorted(told["missing_keys"])
    if missing:
        raise invalid("model", f"the files of {name!r} lack {', '.join(missing[:3])}", "a reward model")
    return model
