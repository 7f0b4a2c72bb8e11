"""Qwen3.5, text models: Qwen3-Next, dense or with experts, under other tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import FfnConfig, MlpConfig, ModelConfig
from jengine.models.families.qwen2_moe import SMALL_EXPERTS
from jengine.models.families.qwen3_next import MTP, read_hybrid, write_hybrid
from jengine.models.families.qwen3_next import NAMES as QWEN3_NEXT
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults, read_activation, read_mlp, read_num_layers
from jengine.models.reading.hf_delta import read_delta
from jengine.models.reading.keys import EVERY_LAYER
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

MOE = "Qwen3_5MoeForCausalLM"
ARCHITECTURES = ("Qwen3_5ForCausalLM", MOE)
MODELS = "Qwen3.5 (text)"
NAMES: Names = replace(
    QWEN3_NEXT,
    drafting=replace(MTP, count="mtp_num_hidden_layers"),
    ignored=(
        *QWEN3_NEXT.ignored,
        IgnoredTensor(r"model\.visual\..*", "images are not read by the text model"),
    ),
)
DEFAULTS = Defaults(
    vocab_size=248320,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=32,
    num_heads=16,
    num_kv_heads=4,
    head_dim=256,
    max_position=32768,
    partial_rotary=0.25,
)
EXPERTS = SMALL_EXPERTS._replace(experts=256, per_token=8, routing_keys={}, layers=EVERY_LAYER)
MOE_DEFAULTS = replace(DEFAULTS, hidden_size=2048, num_layers=40, num_kv_heads=2)
# M-RoPE keys: in text, positions are equal in all sections.
OF_IMAGES = ("mrope_section", "mrope_interleaved")


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(_without_images(hf))
    is_moe = MOE in (fields.values.get("architectures") or ())
    defaults = MOE_DEFAULTS if is_moe else DEFAULTS
    ffn: FfnConfig
    if is_moe:
        fields.expect("norm_topk_prob", True, ": these models' weights of experts sum to one")
        ffn = EXPERTS.read(fields, MlpConfig(0, read_activation(fields, "hidden_act", "silu")))
    else:
        ffn = read_mlp(fields, defaults)
    ffns = [ffn] * read_num_layers(fields, defaults)
    return read_hybrid(fields, defaults, ffns, read_delta(fields, split=True))


def write_config(config: ModelConfig) -> dict[str, object]:
    is_moe = config.architecture == MOE
    experts = EXPERTS.write(config) if is_moe else {}
    kind = "qwen3_5_moe_text" if is_moe else "qwen3_5_text"
    return {**write_hybrid(config), **experts, "model_type": kind}


def _without_images(hf: Mapping[str, object]) -> dict[str, object]:
    """Drop the M-RoPE keys."""
    return {
        key: {name: one for name, one in value.items() if name not in OF_IMAGES}
        if isinstance(value, Mapping) and key.startswith("rope_")
        else value
        for key, value in hf.items()
    }
