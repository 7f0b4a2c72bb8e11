"""Reads rotary positions from a config.json, in the style of transformers 4 or 5, and writes them.

In: a mapping as parsed from JSON. Out: RopeConfig. What cannot be honoured is refused.
"""

from __future__ import annotations

import math

from jengine.config import RopeConfig
from jengine.errors import CheckpointError
from jengine.models.fields import Fields

_ROPE_COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}
_ROPE_KEYS = {
    "default": _ROPE_COMMON,
    "linear": _ROPE_COMMON | {"factor"},
    "llama3": _ROPE_COMMON
    | {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": _ROPE_COMMON
    | {
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor", "mscale", "mscale_all_dim",
    },
}  # fmt: skip


def read_rope(fields: Fields, default_theta: float, max_position: int) -> RopeConfig:
    """`rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (transformers 4)."""
    part = _rope_part(fields)
    kind = _rope_kind(part)
    unknown = sorted(str(key) for key in part.values if key not in _ROPE_KEYS[kind])
    if unknown:
        raise CheckpointError(
            f"{part.where}: given {', '.join(map(repr, unknown))}, expected for rope type"
            f" {kind!r} only {', '.join(sorted(_ROPE_KEYS[kind]))}."
        )
    if part.number("partial_rotary_factor", 1.0) != 1.0:
        part.refuse("partial_rotary_factor", "1.0: partly rotated heads are not supported")
    theta = _rope_theta(fields, part, default_theta)
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = part.number("factor", minimum=1.0)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    if kind == "yarn":
        return _read_yarn(part, theta, factor, max_position)
    low = part.number("low_freq_factor", above_minimum=True)
    high = part.number("high_freq_factor", minimum=low, above_minimum=True)
    original = part.integer("original_max_position_embeddings", max_position)
    return RopeConfig(theta, "llama3", factor, low, high, original)


def _read_yarn(part: Fields, theta: float, factor: float, max_position: int) -> RopeConfig:
    original = part.integer("original_max_position_embeddings", max_position)
    mscale, all_dim = (_nonzero(part, key) for key in ("mscale", "mscale_all_dim"))
    scales = (mscale, all_dim) if mscale and all_dim else (1.0, 0.0)
    above, below = (1.0 + 0.1 * scale * math.log(factor) for scale in scales)
    return RopeConfig(
        theta,
        "yarn",
        factor,
        original_max_position=original,
        beta_fast=part.optional_number("beta_fast", None) or 32.0,
        beta_slow=part.optional_number("beta_slow", None) or 1.0,
        truncate=part.flag("truncate", True),
        attention_factor=part.optional_number("attention_factor", None) or above / below,
        mscale=mscale,
        mscale_all_dim=all_dim,
    )


def _nonzero(part: Fields, key: str) -> float | None:
    """A number; null and zero stand for "none"."""
    return None if part.values.get(key) is None else part.number(key) or None


def write_rope_scaling(rope: RopeConfig) -> dict[str, object] | None:
    """The inverse of `read_rope`, without the base."""
    if rope.kind == "default":
        return None
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "yarn":
        scaling["original_max_position_embeddings"] = rope.original_max_position
        for key in ("beta_fast", "beta_slow", "truncate", "attention_factor"):
            scaling[key] = getattr(rope, key)
        for key in ("mscale", "mscale_all_dim"):
            if getattr(rope, key) is not None:
                scaling[key] = getattr(rope, key)
    return scaling


def _rope_part(fields: Fields) -> Fields:
    old, new = fields.part("rope_scaling"), fields.part("rope_parameters")
    if old is not None and new is not None and dict(old.values) != dict(new.values):
        fields.refuse("rope_scaling", "the same as 'rope_parameters', or only one of the two")
    return new or old or Fields({}, f"{fields.where}: rope_parameters")


def _rope_kind(part: Fields) -> str:
    known = {kind: kind for kind in _ROPE_KEYS}
    found = [
        part.choice(key, "default", known) for key in ("rope_type", "type") if key in part.values
    ]
    if len(set(found)) > 1:
        part.refuse("type", "the same as 'rope_type'")
    return found[0] if found else "default"


def _rope_theta(fields: Fields, part: Fields, default: float) -> float:
    found = [one for one in (part, fields) if one.values.get("rope_theta") is not None]
    values = {one.number("rope_theta", above_minimum=True) for one in found}
    if len(values) > 1:
        fields.refuse("rope_theta", "the same as 'rope_theta' inside 'rope_parameters'")
    return values.pop() if values else default
