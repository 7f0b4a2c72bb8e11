"""MiniMax-M2: many small experts with biased sigmoid routing on all layers, partly rotated heads,
and QK-norm over all heads.
"""

from __future__ import annotations

from collections.abc import Mapping

from jengine.config import ModelConfig, RoutingConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_rope import PARTIAL
from jengine.models.reading.hf_write import written_attention
from jengine.models.reading.keys import ExpertKeys
from jengine.models.reading.plain_decoder import PlainDecoder
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
MODELS = "MiniMax-M2"
NAMES = Names(
    router="block_sparse_moe.gate",
    choice_bias="block_sparse_moe.e_score_correction_bias",
    experts="block_sparse_moe.experts",
    expert_gate_up=("w1", "w3"),
    expert_down="w2",
    drafting=DraftingNames(),
)
DEFAULTS = Defaults(
    vocab_size=200064,
    hidden_size=3072,
    intermediate_size=1536,
    num_layers=62,
    num_heads=48,
    num_kv_heads=8,
    head_dim=128,
    max_position=196608,
    partial_rotary=1.0,
    rope_theta=5000000.0,
    bos_token_id=200034,
    eos_token_id=200020,
)
PLAIN = PlainDecoder(
    "minimax_m2",
    DEFAULTS,
    attention={"qk_norm": "whole"},
    experts=ExpertKeys(
        256,
        8,
        ("num_local_experts", "num_experts"),
        routing=RoutingConfig(scores="sigmoid", choice_bias=True),
    ),
)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    if hf.get("rotary_dim") is not None and hf.get("rope_parameters") is None:
        head_dim = fields.integer("head_dim", DEFAULTS.head_dim)
        rotated = fields.integer("rotary_dim", maximum=head_dim)
        fields = Fields({**hf, PARTIAL: rotated / head_dim})
    fields.choice("scoring_func", "sigmoid", {"sigmoid": None})
    if fields.optional_integer("shared_intermediate_size", 0, minimum=0):
        fields.refuse("shared_intermediate_size", "0: an MLP that all tokens take is not built")
    return PLAIN.read_config(fields.values)


def write_config(config: ModelConfig) -> dict[str, object]:
    written, rope = PLAIN.write_config(config), written_attention(config).rope
    rotated = {} if rope is None or rope.rotated is None else {"rotary_dim": rope.rotated}
    return {**written, PARTIAL: written.get(PARTIAL, 1.0), **rotated}
