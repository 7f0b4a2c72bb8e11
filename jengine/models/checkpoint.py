"""Maps checkpoint tensors to parameters: names, shapes, slices, transposed or not.

The same pieces are used to load and to save. The names are Llama's unless a family says otherwise
in a `Names`. Must not know files or devices.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from jengine.config import ModelConfig

T = TypeVar("T")
Index = tuple[int | slice, ...]
EVERY = slice(None)
MOST_DRAFTING_LAYERS = 4


@dataclass(frozen=True)
class Piece:
    """A checkpoint tensor of `shape`, or its slice `source`, and the slice of a parameter it fills.

    Most checkpoints store a matrix as [outputs, inputs], parameters are [inputs, outputs]
    (`transpose`); the two axes are then split into those of `parameter[index]`. Both steps are
    views with an inverse.
    """

    name: str
    shape: tuple[int, ...]
    index: Index = ()
    transpose: bool = False
    source: Index = ()

    def place(self, shape: tuple[int, ...]) -> list[slice]:
        """Its slice of a parameter of this shape, one per axis."""
        index = (*self.index, *[EVERY] * (len(shape) - len(self.index)))
        return [
            slice(*one.indices(size)[:2]) if isinstance(one, slice) else slice(one, one + 1)
            for one, size in zip(index, shape, strict=True)
        ]

    def turned(self, tensor: np.ndarray) -> np.ndarray:
        """A view of the checkpoint's tensor with its axes in the parameter's order."""
        tensor = tensor[self.source]
        return tensor.T if self.transpose else tensor

    def take(self, parameter: np.ndarray) -> np.ndarray:
        """The inverse: the checkpoint's tensor, or its slice `source`, out of the parameter."""
        part = parameter[self.index]
        if not self.transpose:
            return part.reshape(self.source_shape)
        return part.reshape(self.source_shape[::-1]).T

    @property
    def source_shape(self) -> tuple[int, ...]:
        """The shape of `source`."""
        # A broadcast scalar has the tensor's shape and takes no memory.
        return np.broadcast_to(0, self.shape)[self.source].shape


def take_tensors(parameter: np.ndarray, pieces: Sequence[Piece]) -> Iterator[np.ndarray]:
    """The checkpoint tensors of a parameter, each assembled from its pieces."""
    for _, group in itertools.groupby(pieces, key=lambda piece: piece.name):
        parts = list(group)
        if not parts[0].source:
            yield parts[0].take(parameter)
            continue
        whole = np.empty(parts[0].shape, parameter.dtype)
        for piece in parts:
            whole[piece.source] = piece.take(parameter)
        yield whole


@dataclass(frozen=True)
class IgnoredTensor:
    """A tensor that a checkpoint may hold although no parameter needs it.

    `same_as` names the tensor whose copy it must be.
    """

    pattern: str
    reason: str
    same_as: str | None = None

    def matches(self, name: str) -> bool:
        """Whether this rule covers the tensor of that name."""
        return re.fullmatch(self.pattern, name) is not None


FREQUENCIES = IgnoredTensor(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    "old files store the rotary frequencies, which follow from config.json",
)


@dataclass(frozen=True)
class Names:
    """What a family calls its tensors, without '.weight' and '.bias'; in layers, without the layer.

    One name where there could be several means one tensor that holds them one after the other.
    """

    # Prefix of all names but the head's. Files of a bare model, without a head, omit it.
    prefix: str = "model."
    embed: str = "embed_tokens"
    positions: str = ""
    final_norm: str = "norm"
    head: str = "lm_head"
    layers: str = "layers"
    before_attention: str = "input_layernorm"
    after_attention: str = "post_attention_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = "post_feedforward_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"  # the whole name: there is no ".weight" behind it
    attention_out: str = "self_attn.o_proj"
    # Without a gate, only up.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    # Whether checkpoints store matrices as [inputs, outputs], as parameters do.
    stored_in_out: bool = False
    ignored: tuple[IgnoredTensor, ...] = (FREQUENCIES,)
    # Whether files may hold layers after the last one, which draft tokens for speculation.
    drafting_layers: bool = False

    @property
    def embed_weight(self) -> str:
        """The tensor that a tied head is a copy of."""
        return f"{self.prefix}{self.embed}.weight"


def with_prefix(tensors: Mapping[str, T], names: Names) -> Mapping[str, T]:
    """The tensors by their full names, also if the file is that of a bare model."""
    bare = names.embed_weight not in tensors and f"{names.embed}.weight" in tensors
    return {names.prefix + name: found for name, found in tensors.items()} if bare else tensors


def ignored_in_decoder(config: ModelConfig, names: Names) -> tuple[IgnoredTensor, ...]:
    """Tensors that old or redundant files of a family hold in addition."""
    ignored = names.ignored
    if names.drafting_layers:
        first = len(config.layers)
        layers = "|".join(str(first + extra) for extra in range(MOST_DRAFTING_LAYERS))
        pattern = rf"{re.escape(names.prefix + names.layers)}\.({layers})\..*"
        ignored = (*ignored, IgnoredTensor(pattern, "layers that draft tokens are not used"))
    if not config.tie_embeddings:
        return ignored
    head = IgnoredTensor(
        re.escape(f"{names.head}.weight"),
        "the head is tied to the embedding, so this is a copy",
        same_as=names.embed_weight,
    )
    return (*ignored, head)
