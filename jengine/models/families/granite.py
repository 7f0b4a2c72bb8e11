"""Granite 3: Llama with multipliers of embeddings, scores, residuals and logits."""

from __future__ import annotations

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import factor
from jengine.models.reading.plain_decoder import ATTENTION_BIAS, MLP_BIAS, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("GraniteForCausalLM",)
MODELS = "Granite 3"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=32000,
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


def _inverse(value: float) -> float:
    return 1.0 / value


PLAIN = PlainDecoder(
    "granite",
    DEFAULTS,
    (ATTENTION_BIAS, MLP_BIAS),
    attention_keys={"scale": factor("attention_multiplier")},
    model_keys={
        "embed_scale": factor("embedding_multiplier"),
        "residual_scale": factor("residual_multiplier"),
        "logit_scale": factor("logits_scaling")._replace(to_field=_inverse, to_key=_inverse),
    },
    also_written={"pad_token_id": None},
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
