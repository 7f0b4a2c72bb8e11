"""Command R: parallel block with one norm, interleaved rotary pairs, scaled logits. Command R7B and
A (Cohere 2): sliding windows on rotated layers, full attention without rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import Defaults
from jengine.models.reading.hf_layers import rotated_in_windows
from jengine.models.reading.hf_write import written_attention, written_window
from jengine.models.reading.keys import factor
from jengine.models.reading.plain_decoder import (
    ATTENTION_BIAS,
    PlainDecoder,
    layer_pattern,
    with_attention,
)
from jengine.models.tensors.checkpoint import Names

SECOND = "Cohere2ForCausalLM"
ARCHITECTURES = ("CohereForCausalLM", SECOND)
MODELS = "Command R, Command R+, Command R7B, Command A"
NAMES = Names(rotates_neighbours=True)
DEFAULTS = Defaults(
    vocab_size=256000,
    hidden_size=8192,
    intermediate_size=22528,
    num_layers=40,
    num_heads=64,
    num_kv_heads=None,
    head_dim=None,
    max_position=8192,
    norm_eps=1e-5,
    norm_eps_key="layer_norm_eps",
    tie_embeddings=True,
    bos_token_id=5,
    eos_token_id=255001,
)
FIRST_DEFAULTS = replace(DEFAULTS, rope_theta=500000.0)
PLAIN = PlainDecoder(
    "cohere",
    FIRST_DEFAULTS,
    (ATTENTION_BIAS,),
    model={"norm": "layer_no_bias", "block": "parallel_one_norm"},
    model_keys={"logit_scale": factor("logit_scale", 0.0625)},
    also_written={"pad_token_id": None},
)
PATTERN = layer_pattern(4096, 4, "sliding_window_pattern")
SECOND_PLAIN = PLAIN._replace(model_type="cohere2", defaults=DEFAULTS, windows=PATTERN)


def read_config(hf: Mapping[str, object]) -> ModelConfig:
    fields = Fields(hf)
    is_second = SECOND in (fields.values.get("architectures") or ())
    config = (SECOND_PLAIN if is_second else PLAIN).read_config(hf)
    if fields.flag("use_qk_norm", False):
        if is_second:
            fields.refuse("use_qk_norm", "false: these models have no such norms")
        config = with_attention(config, qk_norm="layer")
    if is_second:
        config = replace(config, layers=tuple(map(rotated_in_windows, config.layers)))
    return config


def write_config(config: ModelConfig) -> dict[str, object]:
    is_second = config.architecture == SECOND
    return {
        **(SECOND_PLAIN if is_second else PLAIN).write_config(config),
        **({"sliding_window": written_window(config)} if is_second else {}),
        **({"use_qk_norm": True} if written_attention(config).qk_norm else {}),
    }
