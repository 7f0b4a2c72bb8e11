"""Jamba: Mamba in most layers, attention without positions in others; experts in some layers."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    MambaConfig,
    ModelConfig,
    RoutingConfig,
)
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import MOST_EXPERTS, Defaults
from jengine.models.reading.hf_selective import expect_silu, read_rank, written_mamba
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import UNSAID, PlainDecoder, with_blocks, with_mixers
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("JambaForCausalLM",)
MODELS = "Jamba"
NAMES = Names(
    final_norm="final_layernorm",
    before_mlp="pre_ff_layernorm",
    gate_up=("feed_forward.gate_proj", "feed_forward.up_proj"),
    down="feed_forward.down_proj",
    router="feed_forward.router",
    experts="feed_forward.experts",
)
DEFAULTS = Defaults(
    vocab_size=65536,
    hidden_size=4096,
    intermediate_size=14336,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=None,
    max_position=262144,
    bos_token_id=1,
    eos_token_id=2,
)
PLAIN = PlainDecoder("jamba", DEFAULTS, windows=UNSAID, attention={"rope": None})


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    expect_silu(fields)
    config = PLAIN.read_config(hf)
    attention, mlp, layers = written_attention(config), config.layers[0].ffn, len(config.layers)
    mamba = _read_mamba(fields)
    count = fields.integer("num_experts", 16, maximum=MOST_EXPERTS)
    chosen = fields.integer("num_experts_per_tok", 2, maximum=max(count, 2))
    routing = RoutingConfig(normalize=False)
    experts = ExpertsConfig(count, chosen, mlp.intermediate_size, mlp.activation, routing)
    full = _layers_of(fields, "attn_layer", layers, period=8, offset=4)
    sparse = _layers_of(fields, "expert_layer", layers, period=2, offset=1)
    config = with_mixers(config, [attention if at in full else mamba for at in range(layers)])
    has_experts = [at in sparse and count > 1 for at in range(layers)]
    return with_blocks(config, [experts if sparse else mlp for sparse in has_experts])


def _read_mamba(fields: Fields) -> MambaConfig:
    hidden = fields.integer("hidden_size", DEFAULTS.hidden_size)
    return MambaConfig(
        channels=fields.integer("mamba_expand", 2) * hidden,
        state_size=fields.integer("mamba_d_state", 16),
        rank=read_rank(fields, "mamba_dt_rank", hidden),
        width=fields.integer("mamba_d_conv", 4, minimum=2, maximum=16),
        conv_bias=fields.flag("mamba_conv_bias", True),
        bias=fields.flag("mamba_proj_bias", False),
        norms="weighted",
        norm_eps=fields.number("rms_norm_eps", DEFAULTS.norm_eps, above_minimum=True),
    )


def _layers_of(fields: Fields, kind: str, layers: int, *, period: int, offset: int) -> set[int]:
    """Every `period`-th layer, from layer `offset` on."""
    every = fields.integer(f"{kind}_period", period)
    first = fields.integer(f"{kind}_offset", offset, minimum=0)
    return {layer for layer in range(layers) if layer % every == first}


def write_config(config: ModelConfig) -> dict[str, object]:
    mamba = written_mamba(config)
    full = [isinstance(layer.mixer, AttentionConfig) for layer in config.layers]
    sparse = [isinstance(layer.ffn, ExpertsConfig) for layer in config.layers]
    experts = next((one.ffn for one in config.layers if isinstance(one.ffn, ExpertsConfig)), None)
    return {
        **PLAIN.write_config(config),
        "num_experts": 1 if experts is None else experts.num_experts,
        "num_experts_per_tok": 2 if experts is None else experts.experts_per_token,
        **_pattern("attn_layer", full),
        **_pattern("expert_layer", sparse),
        "mamba_expand": mamba.channels // config.hidden_size,
        "mamba_d_state": mamba.state_size,
        "mamba_dt_rank": mamba.rank,
        "mamba_d_conv": mamba.width,
        "mamba_conv_bias": mamba.conv_bias,
        "mamba_proj_bias": mamba.bias,
    }


def _pattern(kind: str, layers: list[bool]) -> dict[str, object]:
    """Inverse of `_layers_of`."""
    found = [layer for layer, is_one in enumerate(layers) if is_one]
    if not found:
        return {f"{kind}_period": len(layers) + 1, f"{kind}_offset": len(layers)}
    every = found[1] - found[0] if len(found) > 1 else len(layers)
    if found[0] >= every:
        raise CheckpointError(f"A config.json of Jamba cannot express {kind}s at {found}.")
    return {f"{kind}_period": every, f"{kind}_offset": found[0]}
