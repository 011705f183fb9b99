"""What a loaded model really hands to attention, seen by running two tokens through it.

A config can leave out or misname what the modelling code does; the calls can't. The probe stands in
for attention, answers zeros, and records each layer's shapes and arguments. With attention silent,
tokens must not influence each other, neither in the logits nor in what attention is handed: where they do,
the model mixes them elsewhere (recurrence, convolution), and a batch of unrelated rows would leak.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from forkdecode.errors import ModelLoadError
from forkdecode.model.experts import plain_experts
from forkdecode.model.hand_over import HandOver, handed
from forkdecode.model.head import replayed
from forkdecode.model.support import one_line, refuse

PROBE = "forkdecode_probe"
# What the attention of forkdecode takes into account, and what carries nothing for it.
_SERVED_ARGUMENTS = frozenset({"scaling", "sliding_window", "softcap", "s_aux", "is_causal"})
_IGNORED_ARGUMENTS = frozenset({
    "dropout", "position_ids", "use_cache", "cache_position", "training", "logits_to_keep",
})  # fmt: skip
_NEEDED_PARAMETERS = ("position_ids", "use_cache", "logits_to_keep")


@dataclass(slots=True)
class _Layer:
    query: Tensor
    key: Tensor
    value: Tensor
    window: int | None
    causal: bool
    unserved: tuple[str, ...]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value


@dataclass(slots=True)
class _Recorder:
    layers: dict[int, _Layer] = field(default_factory=dict)
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """kv_shapes: (K kv heads, D head_dim) per layer, D the larger where keys and values have unequal sizes.
    windows: tokens seen at most, or None."""

    kv_shapes: tuple[tuple[int, int], ...]
    windows: tuple[int | None, ...]
    vocab_size: int


def _probe_attention(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    recorder = handed(module)
    if isinstance(recorder, _Recorder):
        layer_idx = int(getattr(module, "layer_idx", -1))
        known = _SERVED_ARGUMENTS | _IGNORED_ARGUMENTS
        unserved = [k for k, v in kwargs.items() if k not in known and v is not None and v is not False]
        if attention_mask is not None:
            unserved.append("attention_mask")
        causal = kwargs.get("is_causal")
        recorder.repeated |= layer_idx in recorder.layers
        recorder.layers[layer_idx] = _Layer(
            query,
            key,
            value,
            kwargs.get("sliding_window"),
            bool(getattr(module, "is_causal", True) if causal is None else causal),
            tuple(unserved),
        )
    batch, heads, tokens, _ = query.shape
    return query.new_zeros(batch, tokens, heads, value.shape[-1]), None


AttentionInterface.register(PROBE, _probe_attention)


def probe(name: str, model: PreTrainedModel) -> ProbeResult:
    """Run two tokens twice through `model` and read off what its layers need.

    Raises ModelLoadError with the reason for whatever forkdecode's attention couldn't answer right.
    """
    if missing := [p for p in _NEEDED_PARAMETERS if not _takes(model, p)]:
        raise refuse(name, f"its forward takes no {', '.join(missing)}")
    token, other = _tokens(model)
    with _trial(name, model, "a trial run of two tokens failed"):
        recorder, same = _run(model, token, token)
        beside, mixed = _run(model, other, token)
    _check_layers(name, model, recorder)
    if not bool(same.isfinite().all()):
        raise refuse(name, "a trial run of two tokens gave NaN or infinite logits")
    if not _alike(same, mixed) or _mixes(recorder, beside):
        raise refuse(name, "it mixes tokens outside attention (recurrence or convolution)")
    with _trial(name, model, "its forward can't take what its decoder has computed"):
        again = _replay(model, token)
    if not torch.allclose(same, again, rtol=2e-2, atol=1e-2 * float(same.abs().max()) + 1e-6):
        raise refuse(name, "its logits come of more than its decoder's last hidden state")
    layers = [recorder.layers[i] for i in range(len(recorder.layers))]
    shapes = tuple((layer.key.shape[1], max(layer.key.shape[3], layer.value.shape[3])) for layer in layers)
    return ProbeResult(shapes, _windows(name, model, layers), int(same.shape[-1]))


def _takes(model: PreTrainedModel, parameter: str) -> bool:
    """use_cache need not be named: Granite's mixtures hand it on to the decoder with the other keywords."""
    accepted = inspect.signature(model.forward).parameters
    others = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    return parameter in accepted or (parameter == "use_cache" and others)


@contextmanager
def _trial(name: str, model: PreTrainedModel, failed: str) -> Iterator[None]:
    """With the probe's attention. Raises ModelLoadError for whatever is raised within."""
    before = model.config._attn_implementation
    try:
        model.set_attn_implementation(PROBE)
        with plain_experts(model):
            yield
    except ModelLoadError:
        raise
    except Exception as error:
        raise refuse(name, f"{failed}: {one_line(error)}") from error
    finally:
        model.set_attn_implementation(before)


def _tokens(model: PreTrainedModel) -> tuple[int, int]:
    """Two ids that are no padding: a fresh model's embedding of its pad id is zero."""
    pad = getattr(model.config.get_text_config(decoder=True), "pad_token_id", None)
    first, second, *_ = (i for i in (2, 3, 4) if i != pad)
    return first, second


@torch.inference_mode()
def _run(model: PreTrainedModel, first: int, second: int) -> tuple[_Recorder, Tensor]:
    """One pass of two tokens: what was recorded, and the last one's logits [V], float32."""
    recorder = HandOver(model).content = _Recorder()
    device: torch.device = model.device
    ids, positions = torch.tensor([[first, second]], device=device), torch.tensor([[0, 1]], device=device)
    keep = torch.tensor([1], device=device)
    output = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep)
    return recorder, output.logits[0, -1].float()


@torch.inference_mode()
def _replay(model: PreTrainedModel, token: int) -> Tensor:
    """The same logits in two parts, as an engine computes them: the decoder, then what follows it."""
    HandOver(model)
    device: torch.device = model.device
    ids, positions = torch.tensor([[token, token]], device=device), torch.tensor([[0, 1]], device=device)
    output = model.base_model(input_ids=ids, position_ids=positions, use_cache=False)
    return replayed(model, output)[0, -1].float()


def _mixes(recorder: _Recorder, beside: _Recorder) -> bool:
    """Whether the second token's queries, keys or values depend on the first, somewhere."""
    return not all(
        _alike(a[:, :, 1], b[:, :, 1])
        for i, one in recorder.layers.items()
        for a, b in zip(one.tensors, beside.layers[i].tensors, strict=True)
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    # What mixes tokens differs by as much as there is; half's last bits add up over many layers.
    rtol, atol = (1e-2, 1e-3) if a.dtype == torch.float32 else (2e-2, 1e-2)
    return torch.allclose(a, b, rtol=rtol, atol=atol * float(a.abs().max()) + 1e-6)


def _check_layers(name: str, model: PreTrainedModel, recorder: _Recorder) -> None:
    layers = recorder.layers
    expected = int(model.config.get_text_config(decoder=True).num_hidden_layers)
    if not layers:
        raise refuse(name, "its attention does not go through transformers' AttentionInterface")
    if recorder.repeated:
        raise refuse(name, "a layer of it attends more than once a token, each time to other keys and values")
    if sorted(layers) != list(range(expected)):
        raise refuse(
            name, f"{len(layers)} of its {expected} layers have attention with a KV cache of their own"
        )
    for i, layer in sorted(layers.items()):
        if layer.key.shape[:3] != layer.value.shape[:3]:
            heads = f"{layer.key.shape[1]} and {layer.value.shape[1]}"
            raise refuse(name, f"keys and values of layer {i} have unequal numbers of heads ({heads})")
        if not layer.causal:
            raise refuse(name, f"attention of layer {i} is not causal")
        if layer.unserved:
            raise refuse(name, f"attention of layer {i} needs {', '.join(layer.unserved)}")
    if len({layer.key.data_ptr() for layer in layers.values()}) < expected:
        raise refuse(name, "layers share their KV cache; each needs its own")
    if all(torch.equal(layer.key[:, :, 0], layer.key[:, :, 1]) for layer in layers.values()):
        raise refuse(name, "positions don't reach its keys: no layer has position embeddings")


def _windows(name: str, model: PreTrainedModel, layers: list[_Layer]) -> tuple[int | None, ...]:
    """Per layer the window that attention is handed, or the config's where the layer is a sliding one."""
    config = model.config.get_text_config(decoder=True)
    types = getattr(config, "layer_types", None) or [None] * len(layers)
    windows: list[int | None] = []
    for layer, layer_type in zip(layers, types, strict=True):
        window = layer.window
        if window is None and layer_type == "sliding_attention":
            window = getattr(config, "sliding_window", None)
            if window is None:
                raise refuse(name, "it has sliding layers without a window size")
        if window is None and layer_type is None:
            _check_no_window(name, config)
        if window is not None and window < 1:
            raise refuse(name, f"it has a sliding window of {window}; a window is of at least 1 token")
        windows.append(None if window is None else int(window))
    return tuple(windows)


def _check_no_window(name: str, config: Any) -> None:
    """Moshi's attention is handed no window, but transformers' cache drops what has left the config's."""
    window = getattr(config, "sliding_window", None)
    if window is not None and window < (getattr(config, "max_position_embeddings", None) or window + 1):
        raise refuse(name, f"its config has a sliding window of {window}, which its attention is not handed")
