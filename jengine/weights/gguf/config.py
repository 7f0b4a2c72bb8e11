"""A config.json out of a GGUF file's metadata.

In: a header. Out: what config.json would say, as a mapping. Must not know how numbers are packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jengine.errors import CheckpointError
from jengine.weights.gguf.header import Header

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}
ARCHITECTURE = "general.architecture"
ROPE_FACTORS = "rope_freqs.weight"
# What all published Llama 3.x have; files hold only the factors that follow from these.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
PLAIN_TYPES = {"F32": "float32", "F16": "float16"}


def config_of(header: Header) -> dict[str, object]:
    """The keys of config.json."""
    fields = Metadata(header)
    own, family = fields.architecture
    if fields.number("expert_count", 0):
        raise fields.refuse("expert_count", "0: experts in GGUF are not built")
    heads, hidden = fields.number("attention.head_count"), fields.number("embedding_length")
    table = fields.tensor_shape("token_embd.weight")
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[own][0]],
        "model_type": family,
        "vocab_size": table[0],
        "hidden_size": hidden,
        "intermediate_size": fields.number("feed_forward_length"),
        "num_hidden_layers": fields.number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.number("attention.head_count_kv", heads),
        "head_dim": fields.number("attention.key_length", hidden // heads),
        "max_position_embeddings": fields.number("context_length"),
        "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": fields.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "torch_dtype": _dtype(header),
    }
    if own == "llama":
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    scaling = _rope_scaling(fields, config)
    if scaling is not None:
        config["rope_scaling"] = scaling
    for key, name in (("bos_token_id", "bos"), ("eos_token_id", "eos")):
        config[key] = header.metadata.get(f"tokenizer.ggml.{name}_token_id")
    return config


class Metadata:
    """The metadata of one architecture, by keys without its name."""

    def __init__(self, header: Header) -> None:
        self.header = header
        own = header.metadata.get(ARCHITECTURE)
        if own not in ARCHITECTURES:
            raise CheckpointError(
                f"{header.file}: {ARCHITECTURE} is {own!r}, expected one of"
                f" {', '.join(ARCHITECTURES)}. Other models are read from safetensors."
            )
        self.architecture = own, ARCHITECTURES[own][1]

    def refuse(self, key: str, expected: str) -> CheckpointError:
        """An error about one key."""
        given = self.header.metadata.get(f"{self.architecture[0]}.{key}")
        return CheckpointError(
            f"{self.header.file}: {self.architecture[0]}.{key} is {given!r}, expected {expected}."
        )

    def get(self, key: str) -> Any:
        """A value, None where there is none."""
        return self.header.metadata.get(f"{self.architecture[0]}.{key}")

    def number(self, key: str, default: float | None = None) -> Any:
        """A number, which is the same in all layers."""
        found = self.get(key)
        found = default if found is None else found
        if not isinstance(found, int | float) or isinstance(found, bool):
            raise self.refuse(key, "a number")
        return found

    def tensor_shape(self, name: str) -> tuple[int, ...]:
        """The shape of a matrix that every model has."""
        found = self.header.tensors.get(name)
        if found is None or len(found.shape) != 2:
            raise CheckpointError(f"{self.header.file}: tensor missing: {name!r}.")
        return found.shape


def _dtype(header: Header) -> str:
    """That of all matrices, if it is float32 or float16, otherwise bfloat16."""
    kinds = {one.type.name for one in header.tensors.values() if len(one.shape) > 1}
    return PLAIN_TYPES.get(kinds.pop(), "bfloat16") if len(kinds) == 1 else "bfloat16"


def _rope_scaling(fields: Metadata, config: Mapping[str, Any]) -> dict[str, object] | None:
    factors = fields.header.tensors.get(ROPE_FACTORS)
    if factors is not None:
        return _llama3(fields, np.asarray(factors.bytes().view("<f4")), config)
    kind = fields.get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise fields.refuse("rope.scaling.type", "none, linear or yarn")
    scaling: dict[str, object] = {
        "rope_type": kind,
        "factor": float(fields.number("rope.scaling.factor")),
    }
    if kind == "yarn":
        original = fields.number(
            "rope.scaling.original_context_length", config["max_position_embeddings"]
        )
        scaling["original_max_position_embeddings"] = original
    return scaling


def _llama3(fields: Metadata, factors: np.ndarray, config: Mapping[str, Any]) -> dict[str, object]:
    """The settings from which these factors of wave lengths follow."""
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    original, factor = LLAMA3["original_max_position_embeddings"], float(factors.max())
    pairs = config["head_dim"] // 2
    lengths = 2 * np.pi * config["rope_theta"] ** (np.arange(pairs) / pairs)
    smooth = np.clip((original / lengths - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(
            f"{fields.header.file}: {ROPE_FACTORS!r} holds other factors than Llama 3's, which are"
            " not built. Read the model from safetensors, whose config.json says what they are."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}
