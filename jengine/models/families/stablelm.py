"""StableLM: layer norms, partly rotated heads and, in some models, a parallel block."""

from __future__ import annotations

from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.keys import flag
from jengine.models.reading.plain_decoder import BiasKey, PlainDecoder
from jengine.models.tensors.checkpoint import Names

ARCHITECTURES = ("StableLmForCausalLM",)
MODELS = "StableLM 2, StableLM 3B"
NAMES = Names()
DEFAULTS = Defaults(
    vocab_size=50304,
    hidden_size=2560,
    intermediate_size=6912,
    num_layers=32,
    num_heads=32,
    num_kv_heads=32,
    head_dim=None,
    max_position=4096,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    partial_rotary=0.25,
    bos_token_id=0,
    eos_token_id=0,
)
PLAIN = PlainDecoder(
    "stablelm",
    DEFAULTS,
    (BiasKey("use_qkv_bias", ("qkv",)),),
    model={"norm": "layer"},
    model_keys={
        "block": flag("use_parallel_residual", False, true="parallel_one_norm", false="serial")
    },
    expected=(("qk_layernorm", False, ": a norm with weights of its own per head is not built"),),
)
read_config, write_config = PLAIN.read_config, PLAIN.write_config
