"""GPT-NeoX and Pythia: parallel block, partly rotated heads, biases everywhere, one QKV tensor
grouped by head.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.keys import flag
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import IgnoredTensor, Names

ARCHITECTURES = ("GPTNeoXForCausalLM",)
MODELS = "GPT-NeoX, Pythia"
NAMES = Names(
    prefix="gpt_neox.",
    embed="embed_in",
    final_norm="final_layer_norm",
    head="embed_out",
    qkv=("attention.query_key_value",),
    qkv_by_head=True,
    attention_out="attention.dense",
    gate_up=("mlp.dense_h_to_4h",),
    down="mlp.dense_4h_to_h",
    ignored=(
        IgnoredTensor(
            r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",
            "old files store the causal mask and the rotary frequencies",
        ),
    ),
)
DEFAULTS = Defaults(
    vocab_size=50432,
    hidden_size=6144,
    intermediate_size=24576,
    num_layers=44,
    num_heads=64,
    num_kv_heads=None,
    head_dim=None,
    max_position=2048,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    partial_rotary=0.25,
    activation="gelu",
    bos_token_id=0,
    eos_token_id=2,
)
# Rotary keys of this family only.
ROPE_KEYS = {"rotary_emb_base": "rope_theta", "rotary_pct": PARTIAL}
PLAIN = PlainDecoder(
    "gpt_neox",
    DEFAULTS,
    (ATTENTION_BIAS._replace(default=True),),
    mlp={"gated": False, "biases": True},
    model={"norm": "layer"},
    model_keys={"block": flag("use_parallel_residual", True, true="parallel", false="serial")},
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    if hf.get("rope_parameters") is None:
        own = {theirs: hf[key] for key, theirs in ROPE_KEYS.items() if hf.get(key) is not None}
        hf = {**hf, **own}
    fields, config = Fields(hf), PLAIN.read_config(hf)
    attention = written_attention(config)
    if attention.num_heads != attention.num_kv_heads:
        fields.refuse("num_key_value_heads", "as many as num_attention_heads")
    return config


def write_config(config: ModelConfig) -> dict[str, object]:
    written = PLAIN.write_config(config)
    return {
        **written,
        "rotary_emb_base": written["rope_theta"],
        "rotary_pct": written[PARTIAL],
    }
