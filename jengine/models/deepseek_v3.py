"""DeepSeek-V3 and R1, Kimi K2, Moonlight: latent attention, first layers dense, then experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LatentConfig, LayerConfig, ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.hf_latent import read_latent, write_latent

ARCHITECTURES = ("DeepseekV3ForCausalLM",)
MODELS = "DeepSeek-V3, DeepSeek-R1, Kimi K2, Moonlight (dense layers so far)"
NAMES = Names(drafting_layers=True)
DEFAULTS = Defaults(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=None,
    max_position=4096,
    bos_token_id=0,
    eos_token_id=1,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a DeepSeek-V3 config.json describes."""
    fields = Fields(hf)
    layers = read_num_layers(fields, DEFAULTS)
    dense = fields.integer("first_k_dense_replace", 3, minimum=0)
    if dense < layers:
        fields.refuse("first_k_dense_replace", f"{layers}: layers of experts are not built yet")
    layer = LayerConfig(read_latent(fields, DEFAULTS), read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    latent = config.layers[0].mixer
    family = {
        "model_type": "deepseek_v3",
        "rope_interleave": isinstance(latent, LatentConfig) and latent.interleaved,
        "first_k_dense_replace": len(config.layers),
        "num_nextn_predict_layers": 0,
    }
    return {**write_latent(config), **family}
