"""Gemma 3, text models: Gemma 2 with QK-norm, no soft caps, and two rotations.

Five of six layers have a sliding window and their own rotary base.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, LayerConfig, ModelConfig
from jengine.models.families.gemma2 import NAMES, NORMS, read_gemma, write_gemma
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import with_sliding_rope
from jengine.models.reading.hf_rope import read_rope, ropes_by_layer_type
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder, layer_pattern

__all__ = ["ARCHITECTURES", "MODELS", "NAMES", "read_config", "write_config"]

ARCHITECTURES = ("Gemma3ForCausalLM",)
MODELS = "Gemma 3 (text)"
SLIDING_THETA = 10000.0
DEFAULTS = Defaults(
    vocab_size=262208,
    hidden_size=2304,
    intermediate_size=9216,
    num_layers=26,
    num_heads=8,
    num_kv_heads=4,
    head_dim=256,
    max_position=131072,
    rope_theta=1000000.0,
    activation="gelu_pytorch_tanh",
    activation_key="hidden_activation",
    tie_embeddings=True,
    bos_token_id=2,
    eos_token_id=1,
)
PLAIN = PlainDecoder(
    "gemma3_text",
    DEFAULTS,
    (ATTENTION_BIAS,),
    layer_pattern(4096, 6, "sliding_window_pattern"),
    attention={"qk_norm": "head"},
    model={**NORMS, "counts_stretch": True},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    everywhere, sliding = ropes_by_layer_type(hf, "rope_local_base_freq")
    if everywhere.values.get("attn_logit_softcapping") is not None:
        everywhere.refuse("attn_logit_softcapping", "null, as in all of Gemma 3")
    config = read_gemma(PLAIN, everywhere)
    rope = read_rope(sliding, SLIDING_THETA, config.max_position)
    given = everywhere.values.get("use_bidirectional_attention")
    if given is not None and everywhere.flag("use_bidirectional_attention", False):
        config = replace(config, layers=tuple(map(seeing_ahead, config.layers)))
    return replace(
        config,
        layers=tuple(with_sliding_rope(each, rope) for each in config.layers),
        logit_soft_cap=everywhere.optional_number("final_logit_softcapping", None),
    )


def seeing_ahead(layer: LayerConfig) -> LayerConfig:
    """Make attention bidirectional, with half of the window on each side."""
    mixer = layer.mixer
    assert isinstance(mixer, AttentionConfig), "all of Gemma's layers have attention"
    window = None if mixer.window is None else mixer.window // 2 + 1
    return replace(layer, mixer=replace(mixer, bidirectional=True, window=window))


def write_config(config: ModelConfig) -> dict[str, object]:
    family: dict[str, object] = {"final_logit_softcapping": config.logit_soft_cap}
    sliding = [layer.mixer.rope for layer in config.layers if layer.mixer.window is not None]
    if sliding and sliding[0] is not None:
        family["rope_local_base_freq"] = sliding[0].theta
    return {**write_gemma(PLAIN, config), **family}
