"""Rope scaling of a GGUF file, from metadata or factor tensors.

In: metadata. Out: config.json's `rope_scaling`, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jengine.errors import CheckpointError
from jengine.weights.gguf.metadata import Metadata

FACTORS = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
TENSORS = (FACTORS, LONG, SHORT)  # not parameters
ORIGINAL = "rope.scaling.original_context_length"
# Common to all published Llama 3.x; files hold only the factors computed from these.
LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# "rope.scaling." suffix -> rope_scaling key; optional.
YARN = {
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
    "yarn_attn_factor": "attention_factor",
}
LOG = "rope.scaling.yarn_log_multiplier"


def rope_scaling(fields: Metadata, config: Mapping[str, Any]) -> dict[str, object] | None:
    """config.json's `rope_scaling`; None for unscaled RoPE."""
    if fields.architecture.by_kind:
        fields.get("rope.scaling.type")
        return None
    if fields.has(LONG):
        return _longrope(fields, config)
    if fields.has(FACTORS):
        fields.get("rope.scaling.type")
        return _llama3(fields, _factors(fields, FACTORS), config)
    kind = fields.get("rope.scaling.type")
    factor = fields.get("rope.scaling.factor")
    if kind in (None, "none") or (kind == "linear" and factor is None):
        return None
    if kind not in ("linear", "yarn"):
        raise fields.refuse("rope.scaling.type", "none, linear or yarn")
    found: dict[str, object] = {
        "rope_type": kind,
        "factor": float(fields.number("rope.scaling.factor")),
    }
    return {**found, **_yarn(fields, config)} if kind == "yarn" else found


def _yarn(fields: Metadata, config: Mapping[str, Any]) -> dict[str, object]:
    usual = config["max_position_embeddings"]
    found: dict[str, object] = {"original_max_position_embeddings": fields.number(ORIGINAL, usual)}
    for key, name in YARN.items():
        if fields.get(f"rope.scaling.{key}") is not None:
            found[name] = fields.number(f"rope.scaling.{key}")
    if fields.get(LOG) is not None:  # mscale and mscale_all_dim are equal in published models
        scale = round(10.0 * fields.number(LOG), 6)
        found |= {"mscale": scale, "mscale_all_dim": scale}
    return found


def _longrope(fields: Metadata, config: dict[str, Any] | Mapping[str, Any]) -> dict[str, object]:
    kind = fields.get("rope.scaling.type")
    if kind not in (None, "none", "longrope"):
        raise fields.refuse("rope.scaling.type", "longrope, as there are tensors of its factors")
    found: dict[str, object] = {
        "rope_type": "longrope",
        "long_factor": _factors(fields, LONG).tolist(),
        "short_factor": _factors(fields, SHORT).tolist(),
        "original_max_position_embeddings": fields.number(
            ORIGINAL, config["max_position_embeddings"]
        ),
    }
    if fields.get("rope.scaling.attn_factor") is not None:
        found["attention_factor"] = fields.number("rope.scaling.attn_factor")
    return found


def _factors(fields: Metadata, name: str) -> np.ndarray:
    packed = fields.header.tensors.get(name)
    if packed is None or packed.type.name != "F32" or len(packed.shape) != 1 or not packed.size:
        raise CheckpointError(f"{fields.header.file}: {name!r} does not hold numbers in float32.")
    found = np.asarray(packed.bytes().view("<f4"))
    if not np.isfinite(found).all():
        raise CheckpointError(f"{fields.header.file}: {name!r} holds NaN or infinity.")
    return found


def rotated_share(fields: Metadata) -> float:
    """partial_rotary_factor: the share of pairs with factor 1; 1e30 disables rotation of the
    others."""
    factors = _factors(fields, FACTORS)
    if not (np.isclose(factors, 1) | (factors > 1e20)).all():
        raise CheckpointError(
            f"{fields.header.file}: {FACTORS!r} holds other factors than 1 and 1e30, which are not"
            " built."
        )
    return float(np.mean(factors < 1e20))


def _llama3(fields: Metadata, factors: np.ndarray, config: Mapping[str, Any]) -> dict[str, object]:
    """Recover llama3 scaling settings from per-frequency factors. Raises CheckpointError for
    others."""
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    original, factor = LLAMA3["original_max_position_embeddings"], float(factors.max())
    pairs = config["head_dim"] // 2
    lengths = 2 * np.pi * float(config.get("rope_theta", 1e4)) ** (np.arange(pairs) / pairs)
    smooth = np.clip((original / lengths - low) / (high - low), 0.0, 1.0)
    expected = 1 / ((1 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(
            f"{fields.header.file}: {FACTORS!r} holds other factors than Llama 3's, which are"
            " not built. Read the model from safetensors, whose config.json says what they are."
        )
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}
