"""How long a step takes on a named accelerator: a roofline, part by part.

A part takes as long as its bytes at the memory's bandwidth or its FLOPs at the arithmetic's speed,
whichever is longer (Williams, Waterman and Patterson 2009); parts follow each other. Nothing is added for
launches, and for the host only what is asked for (`Host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from forkdecode.step import QuerySegment

PART_BYTES = 4 * 2
"""Of a value of attention's partial results: float32, once out and once in."""
LOGIT_BYTES = 4 * 2
"""Of a logit: float32, written once and read once by the selection."""


@dataclass(frozen=True)
class Accelerator:
    """Of one device: bandwidth and link in bytes/s, flops in dense bfloat16 FLOP/s, memory in bytes.
    link: to each other device, per direction. latency: seconds of one all-reduce of few bytes. processors:
    the forest plan splits long nodes until so many are busy."""

    name: str
    bandwidth: float
    flops: float
    memory: float
    link: float
    latency: float
    processors: int = 132


ACCELERATORS = {
    # NVIDIA's data sheet: 4.8 TB/s, 989 TFLOP/s dense, 141 GB, NVLink 900 GB/s both ways together. What
    # copies and matrix products reach of that: 4.3 TB/s and 790 TFLOP/s (90 % and 80 %). Latency: assumed.
    "h200": Accelerator("h200", 4.3e12, 790e12, 141e9, 450e9, 10e-6),
    # What the PagedAttention paper ran OPT-13B on: 1.555 TB/s, 312 TFLOP/s, 40 GB; the same shares of it.
    "a100-40gb": Accelerator("a100-40gb", 1.4e12, 250e12, 40e9, 300e9, 10e-6, processors=108),
}


@dataclass(frozen=True)
class ModelShape:
    """A decoder of Llama's shape, 16-bit: three matrices in a feed-forward layer of `intermediate`."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool = False
    """Whether lm_head and the embedding are one matrix."""
    element_bytes: int = 2

    @property
    def layer_weights(self) -> int:
        """Weights of all layers' matrices."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def head_weights(self) -> int:
        return self.hidden * self.vocabulary

    @property
    def weight_bytes(self) -> int:
        """Layers, lm_head and the embedding."""
        return (self.layer_weights + (2 - self.tied) * self.head_weights) * self.element_bytes

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.element_bytes


MODELS = {
    # config.json of Llama 3.1.
    "8b": ModelShape("8b", 32, 4096, 32, 8, 128, 14336, 128256),
    "70b": ModelShape("70b", 80, 8192, 64, 8, 128, 28672, 128256),
    # OPT-13B has two matrices of 20480: as many weights as three of two thirds of that.
    "opt-13b": ModelShape("opt-13b", 40, 5120, 40, 40, 128, 20480 * 2 // 3, 50272, tied=True),
}


@dataclass(frozen=True)
class StepWork:
    """tokens: query tokens. rows: those whose logits select. read_tokens: of keys and values that
    attention reads (shared ones once where reads are shared). row_tokens: sum of all queries' contexts.
    parts: partial results of attention. copied_tokens: of keys and values that are copied."""

    tokens: float
    rows: float
    read_tokens: float
    row_tokens: float
    parts: float = 0
    copied_tokens: float = 0

    def __add__(self, other: StepWork) -> StepWork:
        return StepWork(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, times: float) -> StepWork:
        return StepWork(*(getattr(self, f.name) * times for f in fields(self)))


def prompt_work(segments: Sequence[QuerySegment]) -> StepWork:
    """Of prompts that one row reads, without logits. A tile of queries reads all that stands before it; tiles
    are long, so that reads stay behind FLOPs."""
    return StepWork(
        tokens=sum(s.token_count for s in segments),
        rows=0,
        read_tokens=sum(s.position + s.token_count for s in segments),
        row_tokens=sum(s.token_count * (2 * s.position + s.token_count + 1) // 2 for s in segments),
    )


@dataclass(frozen=True)
class Host:
    """Seconds of the host in which the devices wait: a step, a group whose rows decode in it, and a request
    (its first and last step together)."""

    step: float = 0.0
    group: float = 0.0
    request: float = 0.0

    def seconds(self, groups: int, begun: int) -> float:
        """Of one step. begun: requests that get their first token in it."""
        return self.step + self.group * groups + self.request * begun


@dataclass(frozen=True)
class StepTime:
    """Seconds."""

    layers: float = 0.0
    attention: float = 0.0
    head: float = 0.0
    selection: float = 0.0
    copies: float = 0.0
    links: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, f.name) for f in fields(self)))

    def __add__(self, other: StepTime) -> StepTime:
        return StepTime(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class CostModel:
    """A model on `devices` devices, its matrices and heads split evenly (tensor parallelism)."""

    accelerator: Accelerator
    model: ModelShape
    devices: int = 1
    memory_share: float = 0.9
    """Of the devices' memory: weights and KV cache; the rest is for activations and libraries."""

    @property
    def pool_tokens(self) -> int:
        """Tokens whose keys and values fit. Raises ValueError when the weights leave no room."""
        free = self.accelerator.memory * self.devices * self.memory_share - self.model.weight_bytes
        if free < self.model.token_bytes:
            raise ValueError(f"{self.model.name} does not fit on {self.devices} x {self.accelerator.name}")
        return int(free / self.model.token_bytes)

    def seconds(self, work: StepWork) -> StepTime:
        m, element = self.model, self.model.element_bytes
        kv = m.token_bytes * (work.read_tokens + work.tokens)
        parts = work.parts * m.layers * m.heads * (m.head_dim + 1) * PART_BYTES
        return StepTime(
            layers=self._roof(m.layer_weights * element, 2 * m.layer_weights * work.tokens),
            attention=self._roof(kv + parts, 4 * m.layers * m.heads * m.head_dim * work.row_tokens),
            head=self._roof(m.head_weights * element, 2 * m.head_weights * work.rows) if work.rows else 0.0,
            selection=self._roof(work.rows * m.vocabulary * LOGIT_BYTES, 0),
            copies=self._roof(2 * work.copied_tokens * m.token_bytes, 0),
            links=self._links(work.tokens),
        )

    def _roof(self, bytes_: float, flops: float) -> float:
        a = self.accelerator
        return max(bytes_ / a.bandwidth, flops / a.flops) / self.devices

    def _links(self, tokens: float) -> float:
        """Two ring all-reduces of the hidden state in each layer."""
        if self.devices == 1:
            return 0.0
        sent = tokens * self.model.hidden * self.model.element_bytes * 2 * (self.devices - 1) / self.devices
        return 2 * self.model.layers * (sent / self.accelerator.link + self.accelerator.latency)
