"""Mamba and Falcon Mamba: selective scans only, without MLPs."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, MambaConfig, MlpConfig, ModelConfig
from jengine.models.families.mamba2 import NAMES
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_decoder, read_num_layers
from jengine.models.reading.hf_selective import expect_silu, read_rank, written_mamba
from jengine.models.reading.hf_write import write_common

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "read_config", "write_config"]
NORMED = "FalconMambaForCausalLM"
ARCHITECTURES = ("MambaForCausalLM", NORMED)
MODELS = "Mamba, Falcon Mamba"
DEFAULTS = Defaults(
    vocab_size=50280,
    hidden_size=768,
    intermediate_size=0,
    num_layers=32,
    num_heads=1,
    num_kv_heads=None,
    head_dim=None,
    max_position=131072,  # recurrent states have no length limit, but requests need one
    norm_eps=1e-5,
    norm_eps_key="layer_norm_epsilon",
    tie_embeddings=True,
    initializer_range=0.1,
    bos_token_id=0,
    eos_token_id=0,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    expect_silu(fields)
    hidden = fields.integer("hidden_size", DEFAULTS.hidden_size)
    is_normed = hf.get("architectures") == [NORMED]
    mamba = MambaConfig(
        channels=fields.integer("intermediate_size", fields.integer("expand", 2) * hidden),
        state_size=fields.integer("state_size", 16),
        rank=read_rank(fields, "time_step_rank", hidden),
        width=fields.integer("conv_kernel", 4, minimum=2, maximum=16),
        conv_bias=fields.flag("use_conv_bias", True),
        bias=fields.flag("use_bias", False),
        norms="bare" if is_normed else None,
        norm_eps=fields.number("mixer_rms_eps", 1e-6, above_minimum=True) if is_normed else 1e-6,
    )
    layer = LayerConfig(mamba, MlpConfig(0))
    return read_decoder(fields, DEFAULTS, (layer,) * read_num_layers(fields, DEFAULTS))


def write_config(config: ModelConfig) -> dict[str, object]:
    mamba = written_mamba(config)
    is_normed = config.architecture == NORMED
    return {
        **write_common(config),
        "model_type": "falcon_mamba" if is_normed else "mamba",
        **({"mixer_rms_eps": mamba.norm_eps} if is_normed else {}),
        "hidden_size": config.hidden_size,
        "num_hidden_layers": len(config.layers),
        "max_position_embeddings": config.max_position,
        "layer_norm_epsilon": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "intermediate_size": mamba.channels,
        "time_step_rank": mamba.rank,
        "state_size": mamba.state_size,
        "conv_kernel": mamba.width,
        "use_conv_bias": mamba.conv_bias,
        "use_bias": mamba.bias,
    }
