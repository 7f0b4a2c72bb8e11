"""Pieces: how checkpoint tensors map to slices of parameters.

Used to load and to save. Names are Llama's unless a family's `Names` says otherwise. Must not know
files or devices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from jengine.config import ModelConfig

T = TypeVar("T")
Index = tuple[int | slice, ...]
EVERY = slice(None)
MOST_DRAFTING_LAYERS = 4


@dataclass(frozen=True)
class Piece:
    """A checkpoint tensor (or its slice `source`) and the slice of a parameter that it fills.

    Most checkpoints store [outputs, inputs], parameters are [inputs, outputs] (`transpose`); both
    axes are then split into those of `parameter[index]`. Where `source` takes lanes of every head,
    `view` splits the first axis. All steps are invertible views. A missing `optional` tensor stands
    for zeros.
    """

    name: str
    shape: tuple[int, ...]
    index: Index = ()
    transpose: bool = False
    source: Index = ()
    view: tuple[int, ...] = ()
    optional: bool = False

    def place(self, shape: tuple[int, ...]) -> list[slice]:
        """Slices of a parameter of this shape that the piece fills, one per axis."""
        index = (*self.index, *[EVERY] * (len(shape) - len(self.index)))
        return [
            slice(*one.indices(size)[:2]) if isinstance(one, slice) else slice(one, one + 1)
            for one, size in zip(index, shape, strict=True)
        ]

    def groups(self, count: int) -> Sequence[int]:
        """Which of a parameter's `count` groups (such as experts) the piece fills."""
        first = self.index[0] if self.index else EVERY
        return [first] if isinstance(first, int) else range(*first.indices(count))

    def of_group(self, group: int) -> Piece:
        """The piece of a single group, as if it were a separate module. A stacked tensor is renamed
        as in checkpoints with a tensor per group."""
        index, own = self.index[1:], self.source
        if len(self.shape) == 2:
            return replace(self, index=index)
        head, _, leaf = self.name.removesuffix(".weight").rpartition(".")
        name, own = f"{head}.{group}.{leaf}", own[1:]
        return replace(self, name=name, shape=self.shape[1:], index=index, source=own)

    def turned(self, tensor: np.ndarray) -> np.ndarray:
        """View of the checkpoint's tensor in the parameter's axis order."""
        tensor = tensor.reshape(self.viewed_shape)[self.source]
        return np.moveaxis(tensor, -1, 0) if self.transpose else tensor

    def take(self, parameter: np.ndarray) -> np.ndarray:
        """Inverse of `turned`: the checkpoint's tensor, or its slice `source`, from the
        parameter."""
        part = parameter[self.index]
        if not self.transpose:
            return part.reshape(self.source_shape if self.source else self.shape)
        *outputs, inputs = self.source_shape
        return np.moveaxis(part.reshape(inputs, *outputs), 0, -1)

    @property
    def viewed_shape(self) -> tuple[int, ...]:
        """Tensor shape with the first axis split by `view`."""
        return (*self.view, *self.shape[1:]) if self.view else self.shape

    @property
    def source_shape(self) -> tuple[int, ...]:
        # A broadcast scalar has the tensor's shape and takes no memory.
        return np.broadcast_to(0, self.viewed_shape)[self.source].shape


def take_tensor(parts: Sequence[tuple[np.ndarray, Piece]]) -> np.ndarray:
    """Assemble a checkpoint tensor from the parameters it fills."""
    parameter, first = parts[0]
    if not first.source:
        return first.take(parameter)
    whole = np.empty(first.shape, parameter.dtype)
    for parameter, piece in parts:
        whole.reshape(piece.viewed_shape)[piece.source] = piece.take(parameter)
    return whole


@dataclass(frozen=True)
class IgnoredTensor:
    """A tensor that a checkpoint may hold although no parameter needs it. `same_as`: it must be a
    copy of that tensor."""

    pattern: str
    reason: str
    same_as: str | None = None

    def matches(self, name: str) -> bool:
        return re.fullmatch(self.pattern, name) is not None


# How a checkpoint holds the matrices of experts: each as a tensor, or all in one tensor [experts,
# outputs, inputs] or [experts, inputs, outputs], with gates before the rest or in pairs; or gates,
# the rest and outputs as `rows` of one tensor each, [experts * inner size, hidden size]. Names of
# such tensors are whole names.
ExpertLayout = Literal["apart", "outputs_first", "inputs_first", "inputs_first_pairs", "rows"]

FREQUENCIES = IgnoredTensor(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    "old files store the rotary frequencies, which follow from config.json",
)


@dataclass(frozen=True)
class DraftingNames:
    """Tensor names of a multi-token prediction (MTP) layer, and how its config keys and embeddings
    differ between families."""

    # What all names begin with; empty: what those of a layer after the last one do.
    root: str = ""
    layer: str = ""  # what names of the decoder layer's own tensors begin with, behind the root
    matrix: str = "eh_proj"  # of embedding and hidden state
    embed_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    last_norm: str = "shared_head.norm"
    count: str = "num_nextn_predict_layers"  # the key of config.json with the number of layers
    usual: int = 0  # their number where config.json has no such key
    # Whether the first token's embedding is left out, since none stands before it.
    skips_first: bool = True


@dataclass(frozen=True)
class Names:
    """A family's tensor names, without '.weight' and '.bias' (and, within layers, the layer's
    prefix). One name where several are possible means a fused tensor."""

    # Prefix of all names but the head's. Files of a bare model, without a head, omit it.
    prefix: str = "model."
    embed: str = "embed_tokens"
    positions: str = ""
    types: str = ""
    embed_norm: str = ""
    final_norm: str = "norm"
    head: str = "lm_head"
    # Of what comes before the head; whole names, as the head's.
    head_dense: str = ""
    head_norm: str = ""
    layers: str = "layers"
    before_attention: str = "input_layernorm"
    after_attention: str = "post_attention_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = "post_feedforward_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    key_bias: bool = True  # whether keys have a bias where queries and values do
    # Whether one tensor holds each KV head's queries, key and value together.
    qkv_by_head: bool = False
    # Whether one tensor holds so many blocks of heads, each with queries, values and keys.
    qkv_blocks: int = 0
    # The gate of what attention mixed, where its tensor is not the queries'.
    attention_gate: str = ""
    # Whether rotation pairs neighbouring lanes of a head, not lanes of its two halves.
    rotates_neighbours: bool = False
    rotates_backwards: bool = False  # by the negative angle
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"  # the whole name: there is no ".weight" behind it
    distance_bias: str = ""
    out_norm: str = ""
    attention_out: str = "self_attn.o_proj"
    # Of each layer's inputs: the table, the projection of embeddings, the projection's norm; then
    # of what a layer does with its own, and the whole name of what its output is multiplied by.
    layer_inputs: str = "embed_tokens_per_layer"
    layer_inputs_project: str = "per_layer_model_projection"
    layer_inputs_norm: str = "per_layer_projection_norm"
    ending_gate: str = "per_layer_input_gate"
    ending_out: str = "per_layer_projection"
    ending_norm: str = "post_per_layer_input_norm"
    layer_factor: str = "layer_scalar"
    recurrent: str = "mamba"  # the module of a recurrent layer
    # Without a gate, only up.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    inner_norm: str = ""
    down: str = "mlp.down_proj"
    rates: str = "mlp.act_fn"  # the module of an activation with parameters
    router: str = "mlp.gate"
    choice_bias: str = "mlp.gate.e_score_correction_bias"  # the whole name
    choice_bias_optional: bool = False  # whether files may lack it: it is zero then
    experts_norm: str = ""
    choice_bias_rows: bool = False  # whether it is a matrix of one row
    experts: str = "mlp.experts"
    expert_gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    expert_down: str = "down_proj"
    expert_layout: ExpertLayout = "apart"
    shared_gate_up: tuple[str, ...] = (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_experts.up_proj",
    )
    shared_down: str = "mlp.shared_experts.down_proj"
    shared_gate: str = "mlp.shared_expert_gate"
    # Whether the mixer and the feed-forward block of a layer are two layers in checkpoints.
    halves_apart: bool = False
    # Whether checkpoints store matrices as [inputs, outputs], as parameters do.
    stored_in_out: bool = False
    ignored: tuple[IgnoredTensor, ...] = (FREQUENCIES,)
    # Layers after the last one that files may hold, which draft tokens for speculation.
    drafting: DraftingNames | None = None
    # Beginnings of names in files of older versions, and what they are now.
    older: tuple[tuple[str, str], ...] = ()

    @property
    def embed_weight(self) -> str:
        """Name of the embedding tensor, of which a tied head is a copy."""
        return f"{self.prefix}{self.embed}.weight"


def with_prefix(tensors: Mapping[str, T], names: Names) -> Mapping[str, T]:
    """Rename tensors of bare models or older files to their full names."""
    for old, new in names.older:
        if any(name.startswith(old) for name in tensors):
            tensors = {
                new + name.removeprefix(old) if name.startswith(old) else name: found
                for name, found in tensors.items()
            }
    parts = names.prefix.split(".")[:-1]
    for end in range(len(parts) + 1):  # the prefix without its first names
        missing = "".join(f"{part}." for part in parts[:end])
        if names.embed_weight.removeprefix(missing) in tensors:
            return {missing + name: found for name, found in tensors.items()} if end else tensors
    return tensors


def ignored_in_decoder(config: ModelConfig, names: Names) -> tuple[IgnoredTensor, ...]:
    """Ignorable tensors in old or redundant files of a family."""
    ignored = names.ignored
    if names.drafting is not None and not names.drafting.root:
        first = len(config.layers)
        layers = "|".join(str(first + extra) for extra in range(MOST_DRAFTING_LAYERS))
        pattern = rf"{re.escape(names.prefix + names.layers)}\.({layers})\..*"
        ignored = (*ignored, IgnoredTensor(pattern, "layers that draft tokens are not used"))
    if config.pooling is not None:
        unused = IgnoredTensor(rf"{re.escape(names.head)}\.(weight|bias)", "pooling has no head")
        return (*ignored, unused)
    if not config.tie_embeddings:
        return ignored
    head = IgnoredTensor(
        re.escape(f"{names.head}.weight"),
        "the head is tied to the embedding, so this is a copy",
        same_as=names.embed_weight,
    )
    return (*ignored, head)
