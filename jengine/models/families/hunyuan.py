"""HunYuan (dense): QK-norm per head after rotation, whose base NTK-alpha may stretch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.plain_decoder import (
    ATTENTION_BIAS,
    UNSAID,
    PlainDecoder,
    with_attention,
)
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("HunYuanDenseV1ForCausalLM",)
MODELS = "HunYuan (dense)"
NAMES = Names(q_norm="self_attn.query_layernorm", k_norm="self_attn.key_layernorm")
DEFAULTS = Defaults(
    vocab_size=290943,
    hidden_size=4096,
    intermediate_size=11008,
    num_layers=32,
    num_heads=32,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    bos_token_id=1,
    eos_token_id=2,
)
ROPES = ("rope_scaling", "rope_parameters")
ALPHA = "alpha"
PLAIN = PlainDecoder(
    "hunyuan_v1_dense",
    DEFAULTS,
    (ATTENTION_BIAS,),
    UNSAID,
    attention={"qk_norm": "behind_rotation"},
)
write_config = PLAIN.write_config


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    plain, alpha = without_alpha(hf)
    config = PLAIN.read_config(plain)
    rope, dim = written_attention(config).rope, written_attention(config).head_dim
    assert rope is not None, "read with one"
    if alpha is None:
        return config
    return with_attention(config, rope=replace(rope, theta=rope.theta * alpha ** (dim / (dim - 2))))


def without_alpha(hf: Mapping[str, object]) -> tuple[dict[str, object], float | None]:
    """Rewrite the "dynamic" rope of published files to a plain one; returns the keys and the fixed
    NTK alpha."""
    plain, alpha = dict(hf), None
    for key in ROPES:
        part = Fields(hf).part(key)
        if part is None or not part.values.get(ALPHA):
            continue
        alpha = part.number(ALPHA, above_minimum=True)
        theta = part.values.get("rope_theta")
        plain[key] = {"rope_type": "default"} if theta is None else {"rope_theta": theta}
    return plain, alpha
