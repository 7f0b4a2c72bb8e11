"""Pieces: how checkpoint tensors map to slices of parameters.

Used to load and to save. Tensor names are Llama's unless a family's `Names` overrides them. Must
not know files or devices.
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
        """Indices of a parameter's groups (such as experts) that the piece fills, out of
        `count`."""
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
        # Broadcast, so that it takes no memory.
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


# Storage of expert matrices: a tensor per expert; one tensor [experts, outputs, inputs] or
# [experts, inputs, outputs] with gate and up concatenated or interleaved; or tensors of all gates,
# ups and downs as rows [experts * inner size, hidden size]. Stacked tensors' names are complete.
ExpertLayout = Literal["apart", "outputs_first", "inputs_first", "inputs_first_pairs", "rows"]

FREQUENCIES = IgnoredTensor(
    r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",
    "old files store the rotary frequencies, which follow from config.json",
)


@dataclass(frozen=True)
class DraftingNames:
    """Tensor names of a multi-token prediction (MTP) layer, and how its config keys and embeddings
    differ between families."""

    # Prefix of all names; "": that of a layer after the model's last one.
    root: str = ""
    layer: str = ""  # prefix of the decoder layer's tensors, after the root
    matrix: str = "eh_proj"  # matmul over [embedding, hidden]
    embed_norm: str = "enorm"
    hidden_norm: str = "hnorm"
    last_norm: str = "shared_head.norm"
    count: str = "num_nextn_predict_layers"  # config.json key of the number of MTP layers
    usual: int = 0  # default number of MTP layers
    # Whether the embedding at position 0 is zeroed, as in training.
    skips_first: bool = True


@dataclass(frozen=True)
class Names:
    """A family's tensor names, without '.weight' and '.bias' (and, within layers, the layer's
    prefix). One name where several are possible means a fused tensor."""

    # Prefix of all names but the head's; bare models' files omit it.
    prefix: str = "model."
    embed: str = "embed_tokens"
    positions: str = ""
    types: str = ""
    embed_norm: str = ""
    final_norm: str = "norm"
    head: str = "lm_head"
    # Transform before the head; complete names, like the head's.
    head_dense: str = ""
    head_norm: str = ""
    layers: str = "layers"
    before_attention: str = "input_layernorm"
    after_attention: str = "post_attention_layernorm"
    before_mlp: str = "post_attention_layernorm"
    after_mlp: str = "post_feedforward_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    key_bias: bool = True  # whether k has a bias if q and v do
    # QKV is one tensor, grouped by KV head: its queries, key, value.
    qkv_by_head: bool = False
    # QKV is one tensor of this many blocks of heads, each (q, v, k); 0: it is not.
    qkv_blocks: int = 0
    # Gate of the attention output; "": fused with the queries.
    attention_gate: str = ""
    # Interleaved RoPE: pairs of neighbouring lanes instead of half-split ones.
    rotates_neighbours: bool = False
    rotates_backwards: bool = False  # RoPE by the negative angle
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"  # complete name: there is no ".weight" suffix
    distance_bias: str = ""
    out_norm: str = ""
    attention_out: str = "self_attn.o_proj"
    # Per-layer inputs: table, projection and its norm; then the modules at a layer's end, and the
    # complete name of the factor of its output.
    layer_inputs: str = "embed_tokens_per_layer"
    layer_inputs_project: str = "per_layer_model_projection"
    layer_inputs_norm: str = "per_layer_projection_norm"
    ending_gate: str = "per_layer_input_gate"
    ending_out: str = "per_layer_projection"
    ending_norm: str = "post_per_layer_input_norm"
    layer_factor: str = "layer_scalar"
    recurrent: str = "mamba"  # module of the mixer in recurrent layers
    # An ungated MLP has only up.
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    inner_norm: str = ""
    down: str = "mlp.down_proj"
    rates: str = "mlp.act_fn"  # module of an activation with parameters
    router: str = "mlp.gate"
    choice_bias: str = "mlp.gate.e_score_correction_bias"  # complete name
    choice_bias_optional: bool = False  # may be absent, meaning zeros
    experts_norm: str = ""
    choice_bias_rows: bool = False  # stored as [1, experts]
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
    # Checkpoints count mixer and feed-forward block as separate layers.
    halves_apart: bool = False
    # Checkpoints store matrices as [inputs, outputs], as parameters do.
    stored_in_out: bool = False
    ignored: tuple[IgnoredTensor, ...] = (FREQUENCIES,)
    # Multi-token prediction layers, which may follow the last layer.
    drafting: DraftingNames | None = None
    # Prefix in older files -> current prefix.
    older: tuple[tuple[str, str], ...] = ()

    @property
    def embed_weight(self) -> str:
        """Name of the embedding tensor, which a tied head shares."""
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
    for end in range(len(parts) + 1):  # shorter and shorter prefixes
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
