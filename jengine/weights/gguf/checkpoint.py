"""A GGUF file as a checkpoint: config, and tensors under Hugging Face names.

In: a file, or the first of several. Out: a ModelConfig and tensors. Matrices, output heads and tied
embeddings stay in the codes of their blocks, with scales as stored; other tables, experts and what
a family stores in another order are dequantized when read.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from jengine.config import PLACES, ModelConfig
from jengine.errors import CheckpointError
from jengine.models import registry
from jengine.models.reading.hf_write import written_attention
from jengine.models.tensors.checkpoint import Names
from jengine.models.tensors.latent_pieces import MODULES
from jengine.models.tensors.quantized_pieces import columns, tensor_names
from jengine.weight_formats import Quantization, StoredFormat, WeightFormat
from jengine.weights.gguf.architectures import Architecture
from jengine.weights.gguf.blocks import common_format, shared_in, values_in
from jengine.weights.gguf.config import config_of
from jengine.weights.gguf.files import open_gguf
from jengine.weights.gguf.header import GgufHeader, PackedTensor
from jengine.weights.gguf.metadata import Metadata
from jengine.weights.gguf.rope import TENSORS as ROPE_TENSORS
from jengine.weights.gguf.stacked import stacked_names, stacked_tensors
from jengine.weights.gguf.tensor import GgufTensor, Turn, plain_tensor
from jengine.weights.gguf.value_heads import grouped_values
from jengine.weights.quantized_files import finite
from jengine.weights.quantized_tensors import SHARED

# Modules fused into one matmul, which need a common format.
JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("attn_output",), ("ffn_down",))
IN_LAYER = re.compile(r"blk\.(\d{1,4})\.((?:\w+\.){1,2}(?:weight|bias)|ssm_[ad]|ffn_norm)")
ONE_PLUS = ("rms_one_plus", "layer_one_plus")


def read_gguf_config(file: Path) -> ModelConfig:
    """The model's config, with `quantization` naming the modules that stay in codes."""
    header = open_gguf(file)
    config = registry.model_config(config_of(header))
    modules = defaultdict[WeightFormat, list[str]](list)
    for name, format in Translation(header, config).coded.items():
        modules[format].append(name)
    groups = tuple((tuple(names), StoredFormat("gguf", one)) for one, names in modules.items())
    return replace(config, quantization=Quantization(groups)) if groups else config


def gguf_tensors(file: Path) -> dict[str, GgufTensor]:
    """All tensors by Hugging Face name; quantized ones as values and scales."""
    header = open_gguf(file)
    config = registry.model_config(config_of(header))
    return {one.name: one for one in Translation(header, config).tensors()}


class Translation:
    """Translates one model's GGUF tensors to Hugging Face names and layouts."""

    def __init__(self, header: GgufHeader, config: ModelConfig) -> None:
        self.header = header
        self.config = config
        self.names = registry.tensor_names(config)
        self.architecture: Architecture = Metadata(header).architecture
        self.modules = layer_modules(config)
        self.whole = whole_names(config)
        shapes = registry.plain_pieces(config).values()
        self.shapes = {piece.name: piece.shape for pieces in shapes for piece in pieces}

    def tensors(self) -> Iterator[GgufTensor]:
        apart = stacked_names(self.config)
        stacked = defaultdict[int, dict[str, PackedTensor]](dict)
        for name, packed in self.header.tensors.items():
            match = IN_LAYER.fullmatch(name)
            if name in (*ROPE_TENSORS, *self.architecture.unused) or self._drafts(match):
                continue
            if match is not None and match[2] in apart:
                stacked[int(match[1])][match[2]] = packed
                continue
            own = self.hf_name(name)
            format = self.coded.get(own.removesuffix(".weight"))
            if format is not None and own.endswith(".weight"):
                yield from self._quantized(own, name, packed, format)
            else:
                yield self._plain(own, name, packed)
        for layer, found in stacked.items():
            yield from stacked_tensors(self.config, self._layer(layer), found)

    @cached_property
    def coded(self) -> dict[str, WeightFormat]:
        """Modules that stay in codes, and their formats; all or none of those fused into one
        matmul."""
        if self.names.stored_in_out or self.names.qkv_by_head:
            return {}  # stored in another layout than declared
        apart = stacked_names(self.config)
        whole = [one for one in JOINED if apart.isdisjoint(f"{name}.weight" for name in one)]
        groups = [
            [f"blk.{layer}.{name}.weight" for name in names]
            for layer in range(self._count())
            for names in whole
        ]
        found = {}
        tied = self.config.tie_embeddings and self.config.pooling is None
        for group in [*groups, ["token_embd.weight" if tied else "output.weight"]]:
            tensors = [self.header.tensors.get(name) for name in group]
            kinds = {"" if one is None or len(one.shape) != 2 else one.type.name for one in tensors}
            if format := common_format(kinds):
                found |= {self.hf_name(name).removesuffix(".weight"): format for name in group}
        return found

    def hf_name(self, name: str) -> str:
        """Hugging Face name of a tensor that maps one to one."""
        match = IN_LAYER.fullmatch(name)
        if match is not None:
            module, _, kind = match[2].rpartition(".")
            own = self.whole.get(match[2])
            if own is None and module in self.modules:
                own = f"{self.modules[module]}.{kind}"
            if own is not None:
                return self._layer(int(match[1])) + own
        module, _, kind = name.rpartition(".")
        whole = whole_modules(self.names)
        if module not in whole:
            raise CheckpointError(
                f"{self.header.file}: {name!r} is a tensor that this architecture has no place for."
            )
        return f"{whole[module]}.{kind}"

    def _count(self) -> int:
        """Number of layers in the file."""
        if not self.names.halves_apart:
            return len(self.config.layers)
        return sum(1 + bool(layer.ffn.active_size) for layer in self.config.layers)

    def _layer(self, number: int) -> str:
        return f"{self.names.prefix}{self.names.layers}.{number}."

    def _drafts(self, match: re.Match[str] | None) -> bool:
        """Whether a tensor belongs to the MTP layers, which follow the model's layers."""
        last = len(self.config.layers)
        return match is not None and self.names.drafting is not None and int(match[1]) >= last

    def _plain(self, own: str, name: str, packed: PackedTensor) -> GgufTensor:
        shape = self.shapes.get(own, packed.shape)
        is_table = "_embd" in name or name == "output.weight"
        if self.names.stored_in_out and len(packed.shape) == 2 and not is_table:
            return plain_tensor(own, (packed,), packed.shape[::-1], lambda array: array.T)
        if name.endswith(".ssm_a"):
            return plain_tensor(own, (packed,), shape, _rate_logs(packed, self._turn(name)))
        if name.endswith(".ssm_norm.weight"):  # stored as a row per group
            flat = (math.prod(packed.shape),)
            return plain_tensor(own, (packed,), flat)
        if self.config.norm in ONE_PLUS and name.endswith("norm.weight"):
            return plain_tensor(own, (packed,), turn=lambda array: array - array.dtype.type(1))
        # Some converters drop axes of length 1.
        same = [size for size in shape if size != 1] == [size for size in packed.shape if size != 1]
        if not same:  # the shape check of loading reports it
            return plain_tensor(own, (packed,))
        return plain_tensor(own, (packed,), shape, self._turn(name))

    def _quantized(
        self, own: str, name: str, packed: PackedTensor, format: WeightFormat
    ) -> Iterator[GgufTensor]:
        rows, inputs = packed.shape
        turn = self._turn(name) if self.shapes.get(own) == packed.shape else None
        for tensor in tensor_names(format):
            shape = rows, columns(tensor, format, inputs)
            if tensor == "weight":
                read, dtype = values_in, "I8" if format.bits == 8 else "U8"
            else:
                read, dtype = (
                    partial(shared_in, tensor),
                    SHARED[format.shared_dtypes("float32")[tensor]],
                )
            decode = partial(_decoded, read, format)
            made = f"{own.removesuffix('.weight')}.{tensor}"
            yield GgufTensor(made, dtype, shape, (packed,), decode, turn)

    def _turn(self, name: str) -> Turn | None:
        """Function that restores the checkpoint's row order, or None if the order is the same."""
        match = IN_LAYER.fullmatch(name)
        module = "" if match is None else match[2].partition(".")[0]
        if turn := grouped_values(self.config, module):
            return turn
        if module not in self._turned:
            return None
        attention = written_attention(self.config)  # equal in all layers of these families
        dim = attention.head_dim
        if module == "attn_qkv":  # [q, k, v] of all heads; checkpoints have them per head
            order = np.arange(3 * attention.num_heads * dim).reshape(3, -1, dim).swapaxes(0, 1)
        else:  # undo interleaving of the halves of each head
            heads = attention.num_heads if module == "attn_q" else attention.num_kv_heads
            order = np.arange(heads * dim).reshape(heads, -1, 2).swapaxes(1, 2)
        return lambda array: array[order.ravel()]

    @property
    def _turned(self) -> tuple[str, ...]:
        """Modules whose rows are permuted compared to checkpoints."""
        if self.names.qkv_by_head:
            return ("attn_qkv",)
        return ("attn_q", "attn_k") if self.architecture.turned else ()


def _rate_logs(packed: PackedTensor, turn: Turn | None) -> Turn:
    """Decay rates are stored as they are multiplied: -exp(A_log)."""

    def logs(rates: np.ndarray) -> np.ndarray:
        if not (rates < 0).all():
            raise CheckpointError(f"{packed.file}: {packed.name!r} holds rates of 0 or more.")
        return np.log(-rates) if turn is None else turn(np.log(-rates))

    return logs


def _decoded(decode: Decoder, format: WeightFormat, packed: PackedTensor) -> np.ndarray:
    return finite(packed, decode(packed, format))


Decoder = Callable[[PackedTensor, WeightFormat], np.ndarray]
SHORT_CONV = ("conv", "in_proj", "out_proj")
RECURRENT = {
    "ssm_in": "in_proj",
    "ssm_ba": "in_proj_ba",
    "ssm_beta": "in_proj_b",
    "ssm_alpha": "in_proj_a",
    "attn_gate": "in_proj_z",
    "attn_qkv": "in_proj_qkv",
    "ssm_conv1d": "conv1d",
    "ssm_norm": "norm",
    "ssm_out": "out_proj",
}
# Tensors whose checkpoint names have no .weight suffix.
RECURRENT_WHOLE = {"ssm_a": "A_log", "ssm_d": "D", "ssm_dt.bias": "dt_bias"}
LATENT = {
    "attn_q_a": "q_down",
    "attn_q_a_norm": "q_norm",
    "attn_kv_a_mqa": "kv_down",
    "attn_kv_a_norm": "kv_norm",
    "attn_kv_b": "kv_up",
}


def whole_modules(names: Names) -> dict[str, str]:
    """Modules outside layers."""
    prefix = names.prefix
    return {
        "token_embd": prefix + names.embed,
        "position_embd": prefix + names.positions,
        "token_embd_norm": prefix + names.embed_norm,
        "token_types": prefix + names.types,
        "per_layer_token_embd": prefix + names.layer_inputs,
        "per_layer_model_proj": prefix + names.layer_inputs_project,
        "per_layer_proj_norm": prefix + names.layer_inputs_norm,
        "output_norm": prefix + names.final_norm,
        "output": names.head,
    }


def layer_modules(config: ModelConfig) -> dict[str, str]:
    """Modules of a layer, except stacked experts: GGUF name -> name in checkpoints."""
    names = registry.tensor_names(config)
    # GGUF's name of the norm between attention and MLP varies.
    between = names.after_attention if "after" in PLACES[config.norm_places] else names.before_mlp
    return {
        "attn_norm": names.before_attention,
        "post_attention_norm": between,
        "ffn_norm": names.before_mlp,
        "post_ffw_norm": names.after_mlp,
        "attn_output_norm": names.after_attention,
        "layer_output_norm": names.after_mlp,
        "inp_gate": names.ending_gate,
        "proj": names.ending_out,
        "post_norm": names.ending_norm,
        "attn_output": names.attention_out,
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        **{f"shortconv.{name}": f"{names.recurrent}.{name}" for name in SHORT_CONV},
        **{theirs: f"{names.recurrent}.{ours}" for theirs, ours in RECURRENT.items()},
        "ffn_down": names.down,
        "ffn_gate_inp": names.router,
        "ffn_gate_inp_shexp": names.shared_gate,
        "ffn_down_shexp": names.shared_down,
        **_parts(("attn_q", "attn_k", "attn_v"), "attn_qkv", names.qkv),
        **_parts(("ffn_gate", "ffn_up"), "ffn_up", names.gate_up),
        **_parts(("ffn_gate_shexp", "ffn_up_shexp"), "ffn_up_shexp", names.shared_gate_up),
        **{theirs: f"self_attn.{MODULES[ours]}" for theirs, ours in LATENT.items()},
        "attn_q_b": "self_attn.q_b_proj",
    }


def whole_names(config: ModelConfig) -> dict[str, str]:
    """Layer tensors whose names have no suffix, in files or in checkpoints."""
    names = registry.tensor_names(config)
    return {
        "attn_sinks.weight": names.sinks,
        "exp_probs_b.bias": names.choice_bias,
        "layer_output_scale.weight": names.layer_factor,
        "ffn_norm": f"{names.before_mlp}.weight",  # Falcon-H1's name of it
        **{theirs: f"{names.recurrent}.{ours}" for theirs, ours in RECURRENT_WHOLE.items()},
    }


def _parts(apart: tuple[str, ...], together: str, theirs: tuple[str, ...]) -> dict[str, str]:
    """Modules stored separately, or fused in checkpoints."""
    return dict(zip(apart, theirs, strict=True)) if len(theirs) > 1 else {together: theirs[0]}
