"""GLM-4.7-Flash: latent attention, dense first layers, then experts as in DeepSeek-V3."""

from __future__ import annotations

from jengine.models.families.deepseek_experts import GroupedExperts
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_latent import LatentDecoder, read_dense_layers
from jengine.models.reading.keys import SparseLayers
from jengine.models.tensors.checkpoint import DraftingNames, Names

ARCHITECTURES = ("Glm4MoeLiteForCausalLM",)
MODELS = "GLM-4.7-Flash"
NAMES = Names(drafting=DraftingNames())
DEFAULTS = Defaults(
    vocab_size=154880,
    hidden_size=2048,
    intermediate_size=10240,
    num_layers=47,
    num_heads=20,
    num_kv_heads=20,
    head_dim=None,
    max_position=202752,
    norm_eps=1e-5,
    bos_token_id=0,
    eos_token_id=1,
)
# Defaults of latent attention that differ from DeepSeek's.
LATENT = {"q_lora_rank": 768, "v_head_dim": 256, "qk_nope_head_dim": 192}


def _read_sparse(fields: Fields, num_layers: int) -> set[int]:
    kinds = fields.values.get("mlp_layer_types")
    if kinds is None:
        return set(range(read_dense_layers(fields, 1, num_layers), num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or {*kinds} - {"dense", "sparse"}:
        fields.refuse("mlp_layer_types", f"{num_layers} times 'dense' or 'sparse'")
    return {layer for layer, kind in enumerate(kinds) if kind == "sparse"}


def _write_sparse(sparse: list[bool]) -> dict[str, object]:
    return {"mlp_layer_types": ["sparse" if one else "dense" for one in sparse]}


# Layers with experts: listed by type, or all after a number of dense ones.
NAMED_LAYERS = SparseLayers(_read_sparse, _write_sparse)
PLAIN = LatentDecoder(
    "glm4_moe_lite",
    DEFAULTS,
    GroupedExperts(64, 4, NAMED_LAYERS, inner=1536, scale=1.8),
    LATENT,
    {"num_nextn_predict_layers": 0},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
