"""DeepSeek-V2 and V2-Lite: latent attention, first layers dense, then experts."""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import LayerConfig, ModelConfig
from jengine.models.checkpoint import Names
from jengine.models.fields import Fields
from jengine.models.hf_config import Defaults, read_decoder, read_mlp, read_num_layers
from jengine.models.hf_latent import read_latent, write_latent

ARCHITECTURES = ("DeepseekV2ForCausalLM",)
MODELS = "DeepSeek-V2, V2-Lite (dense layers so far)"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=102400,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    bos_token_id=1,
    eos_token_id=2,
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    """The decoder that a DeepSeek-V2 config.json describes."""
    fields = Fields(hf)
    if fields.flag("mlp_bias", False):
        fields.refuse("mlp_bias", "false: biases in the MLP are not supported")
    if not fields.flag("rope_interleave", True):
        fields.refuse("rope_interleave", "true: these models rotate neighbouring lanes")
    layers = read_num_layers(fields, DEFAULTS)
    dense = fields.integer("first_k_dense_replace", 0, minimum=0)
    if dense < layers:
        fields.refuse("first_k_dense_replace", f"{layers}: layers of experts are not built yet")
    layer = LayerConfig(read_latent(fields, DEFAULTS), read_mlp(fields, DEFAULTS))
    return read_decoder(fields, DEFAULTS, (layer,) * layers)


def write_config(config: ModelConfig) -> dict[str, object]:
    """The inverse of `read_config`."""
    family = {"model_type": "deepseek_v2", "first_k_dense_replace": len(config.layers)}
    return {**write_latent(config), **family}
