"""Reads a Hugging Face config.json into the shared decoder's config.

In: a mapping parsed from JSON, in transformers 4 or 5 style. Out: ModelConfig. Every value is
checked; unsupported ones are refused. Must not know families or tensors.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, cast

from jengine.config import Activation, AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_rope import read_rope

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
}
DTYPES = {name: name for name in ("float32", "float16", "bfloat16")}
# Limits the size of the abstract model, which is built before tensors are compared.
MOST_LAYERS = 1000
MOST_EXPERTS = 512


@dataclass(frozen=True)
class Defaults:
    """transformers' defaults for keys that a config.json leaves out; None: derived from others."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None
    head_dim: int | None
    max_position: int
    norm_eps: float = 1e-6
    norm_eps_key: str = "rms_norm_eps"
    partial_rotary: float | None = None  # default partial_rotary_factor; None: always 1
    rope_theta: float = 10000.0
    activation: str = "silu"
    activation_key: str = "hidden_act"
    tie_embeddings: bool = False
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | None = None


def read_decoder(
    fields: Fields, defaults: Defaults, layers: tuple[LayerConfig, ...]
) -> ModelConfig:
    """Read a shared decoder with these layers. Families adjust the result with
    `dataclasses.replace`."""
    refuse_unsupported(fields, partial=defaults.partial_rotary is not None)
    vocab = fields.integer("vocab_size", defaults.vocab_size)
    bos, eos = defaults.bos_token_id, defaults.eos_token_id
    return ModelConfig(
        hidden_size=fields.integer("hidden_size", defaults.hidden_size),
        max_position=_read_max_position(fields, defaults),
        layers=layers,
        norm_eps=fields.number(defaults.norm_eps_key, defaults.norm_eps, above_minimum=True),
        tie_embeddings=fields.flag("tie_word_embeddings", defaults.tie_embeddings),
        **read_common(fields, vocab, bos, eos, usual_range=defaults.initializer_range),
    )


def read_common(
    fields: Fields, vocab: int, bos: int | None, eos: int | None,
    range_key: str = "initializer_range", usual_range: float = 0.02,
) -> dict[str, Any]:  # fmt: skip
    """Fields of a ModelConfig whose keys are the same in most families; `bos` and `eos` are default
    token ids. Inverse of `write_common`."""
    return {
        "architecture": read_architecture(fields),
        "vocab_size": vocab,
        "initializer_range": fields.number(range_key, usual_range, maximum=1.0),
        "dtype": read_dtype(fields),
        "bos_token_id": read_bos(fields, bos, vocab),
        "eos_token_ids": read_eos(fields, eos, vocab),
    }


def read_attention(
    fields: Fields,
    defaults: Defaults,
    *,
    qkv_bias: bool = False,
    output_bias: bool = False,
    qk_norm: Literal["head", "whole", "unit"] | None = None,
) -> AttentionConfig:
    """Read full attention; differences between families are arguments."""
    heads, kv_heads, head_dim = _read_heads(fields, defaults)
    rope = read_rope(
        fields,
        defaults.rope_theta,
        _read_max_position(fields, defaults),
        head_dim=head_dim,
        partial=defaults.partial_rotary,
    )
    return AttentionConfig(
        heads,
        kv_heads,
        head_dim,
        rope=rope,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )


def read_mlp(fields: Fields, defaults: Defaults) -> MlpConfig:
    """Read a gated MLP."""
    return MlpConfig(
        fields.integer("intermediate_size", defaults.intermediate_size),
        read_activation(fields, defaults.activation_key, defaults.activation),
    )


def read_experts_count(fields: Fields, default: int, per_token: int, *keys: str) -> tuple[int, int]:
    """Number of experts, under the first of these keys that is present, and experts per token."""
    key = next((key for key in keys if key in fields.values), keys[0])
    experts = fields.integer(key, default, maximum=MOST_EXPERTS)
    return experts, fields.integer("num_experts_per_tok", per_token, maximum=experts)


def read_architecture(fields: Fields) -> str:
    """The single class name under `architectures`."""
    value = fields.values.get("architectures")
    if not isinstance(value, list | tuple) or len(value) != 1 or not isinstance(value[0], str):
        fields.refuse("architectures", "a list of one class name")
    return value[0]


def read_num_layers(fields: Fields, defaults: Defaults) -> int:
    return fields.integer("num_hidden_layers", defaults.num_layers, maximum=MOST_LAYERS)


def read_activation(fields: Fields, key: str, default: str) -> Activation:
    return cast(Activation, fields.choice(key, default, ACTIVATIONS))


def read_bos(fields: Fields, default: int | None, vocab: int) -> int | None:
    """BOS token id; the default applies only if it is within the vocabulary."""
    return fields.optional_integer(
        "bos_token_id", _inside(default, vocab), minimum=0, maximum=vocab - 1
    )


def read_eos(fields: Fields, default: int | None, vocab: int) -> tuple[int, ...]:
    """EOS token ids."""
    return fields.integers("eos_token_id", _inside(default, vocab), maximum=vocab - 1)


def read_dtype(fields: Fields) -> str:
    """`dtype` (transformers 5), else `torch_dtype` (4), else float32."""
    given = [key for key in ("dtype", "torch_dtype") if fields.values.get(key) is not None]
    found = [fields.choice(key, "float32", DTYPES) for key in given]
    if len(set(found)) > 1:
        logger.warning("%s: 'dtype' is %s and 'torch_dtype' is %s; taking the former.",
                       fields.where, *found)  # fmt: skip
    return found[0] if found else "float32"


def refuse_unsupported(fields: Fields, *, partial: bool = False) -> None:
    """Refuse keys that no family supports and that change the meaning of the weights."""
    if not partial and fields.values.get("partial_rotary_factor") not in (None, 1, 1.0):
        fields.refuse("partial_rotary_factor", "1.0: this architecture rotates whole heads")


def _read_max_position(fields: Fields, defaults: Defaults) -> int:
    return fields.integer("max_position_embeddings", defaults.max_position)


def _read_heads(fields: Fields, defaults: Defaults) -> tuple[int, int, int]:
    heads = fields.integer("num_attention_heads", defaults.num_heads)
    kv_heads = fields.optional_integer("num_key_value_heads", defaults.num_kv_heads) or heads
    if heads % kv_heads:
        fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    head_dim = fields.optional_integer("head_dim", defaults.head_dim)
    if head_dim is None:
        hidden = fields.integer("hidden_size", defaults.hidden_size)
        if hidden % heads:
            fields.refuse("hidden_size", f"a multiple of num_attention_heads ({heads})")
        head_dim = hidden // heads
    if head_dim % 2:
        key = "head_dim" if fields.values.get("head_dim") is not None else "hidden_size"
        fields.refuse(key, f"heads of even size, because positions rotate pairs (got {head_dim})")
    return heads, kv_heads, head_dim


def _inside(token_id: int | None, vocab: int) -> int | None:
    """The default id, or None if the vocabulary is too small for it."""
    return token_id if token_id is not None and token_id < vocab else None
