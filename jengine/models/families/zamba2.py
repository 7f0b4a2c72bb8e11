"""Zamba 2: Mamba-2 layers, some of them preceded by one of a few shared transformer blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flax import nnx
from jax import Array

from jengine.config import (
    AttentionConfig,
    LayerConfig,
    Mamba2Config,
    MlpConfig,
    ModelConfig,
    SharedBlockConfig,
)
from jengine.models.context import StepContext
from jengine.models.decoder import Decoder
from jengine.models.linear import Factory
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_activation,
    read_attention,
    read_decoder,
    read_num_layers,
)
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.reading.hf_mamba import written_mamba2
from jengine.models.reading.hf_rope import write_rope_scaling
from jengine.models.reading.hf_write import write_common, written_activation
from jengine.models.shared_block import SharedBlock
from jengine.models.tensors.attention_pieces import attention_pieces
from jengine.models.tensors.checkpoint import EVERY, Names, Piece
from jengine.models.tensors.decoder_pieces import decoder_pieces, layer_pieces
from jengine.models.tensors.matrix_pieces import Pieces, biases, matrices

ARCHITECTURES = ("Zamba2ForCausalLM",)
MODELS = "Zamba 2"
NAMES = Names(final_norm="final_layernorm")
DEFAULTS = Defaults(
    vocab_size=32000,
    hidden_size=2560,
    intermediate_size=0,
    num_layers=54,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    activation="gelu",
    tie_embeddings=True,
    bos_token_id=1,
    eos_token_id=2,
)
TYPES = "layers_block_type"
KINDS = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}
SHARED = (6, 12, 18, 24, 30, 36, 42, 47, 51)  # default layers with shared blocks, of 54
GATED_NORM_EPS = 1e-5  # independent of rms_norm_eps


class Zamba2Decoder(Decoder):
    """Holds the shared blocks beside the layers, and passes them and the embeddings to each
    layer."""

    def add_parts(self, factory: Factory) -> None:
        self.shared = nnx.List([SharedBlock(factory, one) for _, one in blocks(self.config)])

    def through_layers(self, x: Array, context: StepContext) -> Array:
        context.shared_blocks, context.embedded = self.shared, x
        return super().through_layers(x, context)


def build(config: ModelConfig, *, dtype: Any, rngs: nnx.Rngs | None) -> Zamba2Decoder:
    return Zamba2Decoder(config, dtype=dtype, rngs=rngs)


def blocks(config: ModelConfig) -> list[tuple[int, SharedBlockConfig]]:
    """The shared blocks, each with the first layer that uses it, by which checkpoints name it."""
    found: dict[int, tuple[int, SharedBlockConfig]] = {}
    for layer, own in enumerate(config.layers):
        if isinstance(own.mixer, SharedBlockConfig):
            found.setdefault(own.mixer.block, (layer, own.mixer))
    return [found[block] for block in sorted(found)]


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    fields.expect("use_long_context", False, ": its rotation differs between versions")
    # Untied, transformers does not share the blocks either.
    fields.expect("tie_word_embeddings", True, ", as in all published Zamba 2")
    fields.expect("use_conv_bias", True, ", as in all published Zamba 2")
    hidden = fields.integer("hidden_size", DEFAULTS.hidden_size)
    heads, mamba = fields.integer("num_attention_heads", DEFAULTS.num_heads), _read_mamba2(fields)
    if (2 * hidden) % heads:
        fields.refuse("num_attention_heads", f"a divisor of twice hidden_size ({hidden})")
    usual = {**hf, "head_dim": 2 * hidden // heads}
    attention = read_attention(Fields(usual), DEFAULTS)
    rotates = fields.flag("use_mem_rope", False)
    attention = replace(
        attention, rope=attention.rope if rotates else None, scale=(attention.head_dim / 2) ** -0.5
    )
    rank = fields.integer("adapter_rank", 128)
    has_heads = fields.flag("use_shared_attention_adapter", False)
    if has_heads and attention.group > 1:
        fields.refuse("num_key_value_heads", f"num_attention_heads ({heads}), with adapters")
    shared = SharedBlockConfig(
        0, attention, fields.optional_integer("intermediate_size", None) or 4 * hidden,
        read_activation(fields, "hidden_act", "gelu"), mamba.bias, mamba, rank,
        rank if has_heads else None,
    )  # fmt: skip
    return read_decoder(fields, DEFAULTS, _read_layers(fields, mamba, shared))


def _read_layers(
    fields: Fields, mamba: Mamba2Config, shared: SharedBlockConfig
) -> tuple[LayerConfig, ...]:
    num_layers, count = read_num_layers(fields, DEFAULTS), fields.integer("num_mem_blocks", 1)
    if fields.values.get(TYPES) is None:
        usual = ["hybrid" if layer in SHARED else "mamba" for layer in range(DEFAULTS.num_layers)]
        fields = Fields({**fields.values, TYPES: usual[:num_layers]}, fields.where)
    kinds = read_layer_types(fields, num_layers, KINDS, TYPES)
    layers, before = [], 0
    for kind in kinds:
        mixer = replace(shared, block=before % count) if kind == "hybrid" else mamba
        before += kind == "hybrid"
        layers.append(LayerConfig(mixer, MlpConfig(0)))
    return tuple(layers)


def _read_mamba2(fields: Fields) -> Mamba2Config:
    heads, groups = fields.integer("n_mamba_heads", 8), fields.integer("mamba_ngroups", 1)
    inner = fields.integer("mamba_expand", 2) * fields.integer("hidden_size", DEFAULTS.hidden_size)
    if inner % heads or heads % groups:
        fields.refuse("n_mamba_heads", f"a divisor of {inner}, and a multiple of mamba_ngroups")
    return Mamba2Config(
        num_heads=heads, head_dim=inner // heads, groups=groups,
        state_size=fields.integer("mamba_d_state", 64),
        width=fields.integer("mamba_d_conv", 4, minimum=2, maximum=16),
        bias=fields.flag("add_bias_linear", False), norm_eps=GATED_NORM_EPS,
        time_limits=(fields.number("time_step_min", 0.001), float("inf")),
    )  # fmt: skip


def write_config(config: ModelConfig) -> dict[str, object]:
    mamba, found = written_mamba2(config), blocks(config)
    kinds = [
        "hybrid" if isinstance(one.mixer, SharedBlockConfig) else "linear_attention"
        for one in config.layers
    ]
    written = {
        **write_common(config),
        "model_type": "zamba2",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(kinds),
        TYPES: kinds,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "n_mamba_heads": mamba.num_heads,
        "mamba_expand": mamba.num_heads * mamba.head_dim // config.hidden_size,
        "mamba_ngroups": mamba.groups,
        "mamba_d_state": mamba.state_size,
        "mamba_d_conv": mamba.width,
        "add_bias_linear": mamba.bias,
        "time_step_min": mamba.time_limits[0],
    }
    return {**written, **(_written_shared(found[0][1], len(found)) if found else {})}


def _written_shared(shared: SharedBlockConfig, count: int) -> dict[str, object]:
    attention: AttentionConfig = shared.attention
    rope = attention.rope
    rotation = (
        {} if rope is None else {"rope_theta": rope.theta, "rope_scaling": write_rope_scaling(rope)}
    )
    return {
        **rotation,
        "num_mem_blocks": count,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "use_mem_rope": rope is not None,
        "intermediate_size": shared.mlp_size,
        "hidden_act": written_activation(shared.activation),
        "adapter_rank": shared.mlp_rank,
        "use_shared_attention_adapter": shared.qkv_rank is not None,
    }


def pieces(config: ModelConfig) -> Pieces:
    """Checkpoint tensors. A shared block's are named after the first layer that uses it, a layer's
    adapters after its number among the layers with blocks."""
    found, number = decoder_pieces(replace(config, layers=()), NAMES), 0
    starts = {one.block: layer for layer, one in blocks(config)}
    for layer, own in enumerate(config.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        mixer = own.mixer
        if not isinstance(mixer, SharedBlockConfig):
            found |= layer_pieces(config, own, NAMES, ours, theirs)
            continue
        plain = replace(own, mixer=mixer.recurrent)
        parts = layer_pieces(config, plain, NAMES, "", f"{theirs}mamba_decoder.")
        found |= {
            ours + path.replace("attention.", "attention.recurrent.", path.startswith("att")): one
            for path, one in parts.items()
        }
        hidden = config.hidden_size
        linear = matrices(NAMES, [f"{theirs}linear"], hidden, (hidden,), [()])
        found[f"{ours}attention.linear.weight"] = linear
        block = f"model.layers.{starts[mixer.block]}.shared_transformer."
        if starts[mixer.block] == layer:
            shared = _block_pieces(hidden, mixer, block)
            found |= {f"shared.{mixer.block}.{path}": one for path, one in shared.items()}
        added = _added_pieces(hidden, mixer, block, number)
        found |= {f"{ours}attention.added.{path}.weight": one for path, one in added.items()}
        number += 1
    return found


def _block_pieces(hidden: int, mixer: SharedBlockConfig, theirs: str) -> Pieces:
    up, down = f"{theirs}feed_forward.gate_up_proj", f"{theirs}feed_forward.down_proj"
    sizes, halves = (mixer.mlp_size,) * 2, [(EVERY, 0), (EVERY, 1)]
    found = {
        **attention_pieces(hidden, mixer.attention, NAMES, theirs, inputs=2 * hidden),
        "before_attention.weight": (Piece(f"{theirs}input_layernorm.weight", (2 * hidden,)),),
        "before_mlp.weight": (Piece(f"{theirs}pre_ff_layernorm.weight", (hidden,)),),
        "gate_up.weight": matrices(NAMES, [up], hidden, sizes, halves),
        "down.weight": matrices(NAMES, [down], mixer.mlp_size, (hidden,), [()]),
    }
    if mixer.mlp_bias:
        found["gate_up.bias"] = biases([up], sizes, [(0,), (1,)])
        found["down.bias"] = biases([down], (hidden,), [()])
    return found


def _added_pieces(hidden: int, mixer: SharedBlockConfig, theirs: str, number: int) -> Pieces:
    mlp, rank = f"{theirs}feed_forward.gate_up_proj_adapter_list.{number}.", mixer.mlp_rank
    sizes, halves = (mixer.mlp_size,) * 2, [(EVERY, 0), (EVERY, 1)]
    found: Pieces = {
        "mlp_down": matrices(NAMES, [f"{mlp}0"], hidden, (rank,), [()]),
        "mlp_up": matrices(NAMES, [f"{mlp}1"], rank, sizes, halves),
    }
    if mixer.qkv_rank is not None:
        rank, width = mixer.qkv_rank, 2 * hidden
        own = [f"{theirs}self_attn.linear_{one}_adapter_list.{number}." for one in "qkv"]
        parts = [(EVERY, part) for part in range(3)]
        downs = [f"{name}0" for name in own]
        found["qkv_down"] = matrices(NAMES, downs, width, (rank,) * 3, parts)
        for one, name in zip("qkv", own, strict=True):
            found[f"{one}_up"] = matrices(NAMES, [f"{name}1"], rank, (width,), [()])
    return found
