"""Mamba-2 (state-spaces' models and Codestral Mamba): recurrent layers only, without MLPs."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, Mamba2Config, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_activation,
    read_decoder,
    read_num_layers,
)
from jengine.models.reading.hf_mamba import read_time_limits, written_mamba2
from jengine.models.reading.hf_write import write_common
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("Mamba2ForCausalLM",)
MODELS = "Mamba-2, Codestral Mamba"
NAMES = Names(
    prefix="backbone.",
    embed="embeddings",
    final_norm="norm_f",
    before_attention="norm",
    recurrent="mixer",
    older=(("backbone.embedding.", "backbone.embeddings."),),
)
DEFAULTS = Defaults(
    vocab_size=32768,
    hidden_size=4096,
    intermediate_size=0,
    num_layers=64,
    num_heads=128,
    num_kv_heads=None,
    head_dim=64,
    max_position=131072,  # recurrent states have no length limit, but requests need one
    norm_eps=1e-5,
    norm_eps_key="layer_norm_epsilon",
    initializer_range=0.1,
    bos_token_id=0,
    eos_token_id=2,
)
NO_MLP = MlpConfig(0)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    layer = LayerConfig(_read_mixer(fields), NO_MLP)
    return read_decoder(fields, DEFAULTS, (layer,) * read_num_layers(fields, DEFAULTS))


def _read_mixer(fields: Fields) -> Mamba2Config:
    if read_activation(fields, "hidden_act", "silu") != "silu":
        fields.refuse("hidden_act", "silu, which Mamba-2 layers have after their convolution")
    heads, groups = fields.integer("num_heads", 128), fields.integer("n_groups", 8)
    dim = fields.integer("head_dim", 64)
    inner = fields.integer("expand", 2) * fields.integer("hidden_size", DEFAULTS.hidden_size)
    if heads * dim != inner:
        fields.refuse("num_heads", f"the width of all values ({inner}) / head_dim ({dim})")
    if heads % groups:
        fields.refuse("n_groups", f"a divisor of num_heads ({heads})")
    return Mamba2Config(
        num_heads=heads,
        head_dim=dim,
        groups=groups,
        state_size=fields.integer("state_size", 128),
        width=fields.integer("conv_kernel", 4, minimum=2, maximum=16),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        time_limits=read_time_limits(fields),
    )


def write_config(config: ModelConfig) -> dict[str, object]:
    mamba = written_mamba2(config)
    return {
        **write_common(config),
        "model_type": "mamba2",
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(config.layers),
        "max_position_embeddings": config.max_position,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "num_heads": mamba.num_heads,
        "head_dim": mamba.head_dim,
        "expand": mamba.num_heads * mamba.head_dim // config.hidden_size,
        "n_groups": mamba.groups,
        "state_size": mamba.state_size,
        "conv_kernel": mamba.width,
        "use_conv_bias": mamba.conv_bias,
        "use_bias": mamba.bias,
        "time_step_limit": list(mamba.time_limits),
    }
