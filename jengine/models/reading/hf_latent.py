"""Reads latent attention (MLA) from a config.json and writes it.

In: a mapping parsed from JSON. Out: LatentConfig. Unsupported values are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from jengine.config import FfnConfig, LatentConfig, LayerConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.reading.hf_rope import read_rope, write_rope_scaling
from jengine.models.reading.hf_write import write_activation, write_common, written_ffn
from jengine.models.reading.keys import Experts


def read_latent(fields: Fields, defaults: Defaults) -> LatentConfig:
    """Read latent attention; default sizes are those of DeepSeek-V2 and V3."""
    if fields.values.get("index_topk") is not None:
        fields.refuse(
            "index_topk",
            "nothing: attention to the tokens that a sparse indexer picks (DeepSeek-V3.2) is not"
            " built",
        )
    heads = fields.integer("num_attention_heads", defaults.num_heads)
    if (fields.optional_integer("num_key_value_heads", defaults.num_kv_heads) or heads) != heads:
        fields.refuse("num_key_value_heads", f"num_attention_heads ({heads}) or null")
    rope_dim = fields.integer("qk_rope_head_dim", 64)
    if rope_dim % 2:
        fields.refuse("qk_rope_head_dim", "an even number, because positions rotate pairs")
    max_position = fields.integer("max_position_embeddings", defaults.max_position)
    return LatentConfig(
        num_heads=heads,
        kv_rank=fields.integer("kv_lora_rank", 512),
        nope_dim=fields.integer("qk_nope_head_dim", 128),
        rope_dim=rope_dim,
        value_dim=fields.integer("v_head_dim", 128),
        query_rank=fields.optional_integer("q_lora_rank", 1536),
        rope=read_rope(fields, defaults.rope_theta, max_position, head_dim=rope_dim),
        interleaved=fields.flag("rope_interleave", True),
        bias=fields.flag("attention_bias", False),
    )


def write_latent(config: ModelConfig) -> dict[str, object]:
    """Decoder keys, with those of `read_latent`."""
    latent = config.layers[0].mixer
    if not isinstance(latent, LatentConfig) or replace(latent, norm_eps=1e-6) != latent:
        raise CheckpointError(
            f"A config.json of {config.architecture} cannot express {latent}: expected latent"
            " attention whose norms have an eps of 1e-6."
        )
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": written_ffn(config).intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": latent.num_heads,
        "num_key_value_heads": latent.num_heads,
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.query_rank,
        "qk_nope_head_dim": latent.nope_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
        "attention_bias": latent.bias,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": latent.rope.theta,
        "rope_scaling": write_rope_scaling(latent.rope),
        "hidden_act": write_activation(config),
        "tie_word_embeddings": config.tie_embeddings,
        **write_common(config),
    }


class LatentDecoder(NamedTuple):
    """Reader and writer of a family with latent attention in all layers."""

    model_type: str
    defaults: Defaults
    experts: Experts | None = None
    usual: Mapping[str, object] = {}  # defaults that differ from DeepSeek's
    also_written: Mapping[str, object] = {}

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        fields, defaults = Fields({**self.usual, **hf}), self.defaults
        num_layers, latent = read_num_layers(fields, defaults), read_latent(fields, defaults)
        mlp, blocks = read_mlp(fields, defaults), list[FfnConfig]()
        if self.experts is not None:
            blocks = self.experts.read_blocks(fields, mlp, num_layers)
        layers = (LayerConfig(latent, block) for block in blocks or [mlp] * num_layers)
        return read_decoder(fields, defaults, tuple(layers))

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        latent = config.layers[0].mixer
        return {
            **write_latent(config),
            "model_type": self.model_type,
            "rope_interleave": isinstance(latent, LatentConfig) and latent.interleaved,
            **({} if self.experts is None else self.experts.write(config)),
            **self.also_written,
        }


def read_dense_layers(fields: Fields, default: int, layers: int) -> int:
    """Number of dense layers before those with experts."""
    if fields.integer("moe_layer_freq", 1) != 1:
        fields.refuse("moe_layer_freq", "1: experts on every layer after the dense ones")
    return min(fields.integer("first_k_dense_replace", default, minimum=0), layers)
