"""Reads rotary embedding from a config.json, in transformers 4 or 5 style, and writes it.

In: a mapping parsed from JSON. Out: RopeConfig. Unsupported values are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from jengine.config import RopeConfig
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields

PARTIAL = "partial_rotary_factor"
_ROPE_COMMON = {"rope_type", "type", "rope_theta", PARTIAL}
_ROPE_KEYS = {
    "default": _ROPE_COMMON,
    "linear": _ROPE_COMMON | {"factor"},
    "dynamic": _ROPE_COMMON | {"factor", "original_max_position_embeddings"},
    "llama3": _ROPE_COMMON
    | {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": _ROPE_COMMON
    | {
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate",
        "attention_factor", "mscale", "mscale_all_dim",
    },
    "proportional": _ROPE_COMMON | {"factor"},
    "longrope": _ROPE_COMMON
    | {
        "factor", "original_max_position_embeddings", "attention_factor", "short_factor",
        "long_factor",
    },
}  # fmt: skip


def read_rope(
    fields: Fields,
    default_theta: float,
    max_position: int,
    *,
    head_dim: int = 0,
    partial: float | None = None,
) -> RopeConfig:
    """Read `rope_parameters` (transformers 5), or `rope_theta` and `rope_scaling` (4).

    `partial` is the default of partial_rotary_factor; None: heads are always rotated whole.
    """
    part = _rope_part(fields)
    kind = _rope_kind(part)
    _check_keys(part, kind, whole=partial is None)
    theta = _rope_theta(fields, part, default_theta)
    rotated = head_dim if partial is None else _read_rotated(fields, part, head_dim, partial)
    if kind == "proportional":
        return _read_proportional(part, theta, head_dim)
    if kind == "longrope":
        if not rotated:
            part.refuse("rope_type", "another type for this architecture")
        rope = _read_longrope(fields, part, theta, max_position, rotated // 2)
    else:
        rope = _read_kind(part, kind, theta, max_position)
    return rope if rotated == head_dim else replace(rope, rotated=rotated)


def _read_proportional(part: Fields, theta: float, head_dim: int) -> RopeConfig:
    """ "proportional" rope: the first pairs of a head rotate, with frequencies as if all did."""
    if not head_dim:
        part.refuse("rope_type", "another type for this architecture")
    pairs = int(part.number(PARTIAL, 1.0, maximum=1.0) * head_dim // 2)
    factor = part.number("factor", 1.0, above_minimum=True)
    return RopeConfig(theta, "proportional", factor, pairs=pairs)


def _read_rotated(fields: Fields, part: Fields, head_dim: int, default: float) -> int:
    """Number of rotated dimensions per head."""
    where = part if part.values.get(PARTIAL) is not None else fields
    rotated = int(head_dim * where.number(PARTIAL, default, maximum=1.0))
    if rotated % 2 or not rotated:
        where.refuse(PARTIAL, f"a share that is an even number of the {head_dim} dimensions")
    return rotated


def _check_keys(part: Fields, kind: str, *, whole: bool) -> None:
    unknown = sorted(str(key) for key in part.values if key not in _ROPE_KEYS[kind])
    if unknown:
        raise CheckpointError(
            f"{part.where}: given {', '.join(map(repr, unknown))}, expected for rope type"
            f" {kind!r} only {', '.join(sorted(_ROPE_KEYS[kind]))}."
        )
    if part.number(PARTIAL, 1.0) != 1.0 and whole and kind != "proportional":
        part.refuse(PARTIAL, "1.0: this architecture rotates whole heads")


def _read_kind(part: Fields, kind: str, theta: float, max_position: int) -> RopeConfig:
    if kind == "default":
        return RopeConfig(theta=theta)
    factor = part.number("factor", minimum=1.0)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    if kind == "yarn":
        return _read_yarn(part, theta, factor, max_position)
    original = part.integer("original_max_position_embeddings", max_position)
    if kind == "dynamic":
        return RopeConfig(theta, "dynamic", factor, original_max_position=original)
    low = part.number("low_freq_factor", above_minimum=True)
    high = part.number("high_freq_factor", minimum=low, above_minimum=True)
    return RopeConfig(theta, "llama3", factor, low, high, original)


def expect_no_factor(fields: Fields, rope: RopeConfig | None) -> None:
    """Raise CheckpointError if the rotation has an attention factor, which a norm after it would
    cancel."""
    if rope is not None and rope.attention_factor != 1.0:
        key = "rope_scaling" if fields.values.get("rope_scaling") else "rope_parameters"
        fields.refuse(key, "one without a factor, which norms behind it would undo")


def ropes_by_layer_type(hf: Mapping[str, object], sliding_theta: str) -> tuple[Fields, Fields]:
    """Fields of full-attention layers, and the rope of sliding-window layers.

    transformers 5 nests a rope per layer type in `rope_parameters`; in 4, sliding layers have an
    unscaled one with the base at `sliding_theta`.
    """
    nested = Fields(hf).part("rope_parameters")
    if nested is None:
        return Fields(hf), Fields({"rope_theta": hf.get(sliding_theta)})
    unknown = set(nested.values) - {"full_attention", "sliding_attention"}
    if unknown:
        nested.refuse(sorted(map(str, unknown))[0], "only full_attention and sliding_attention")
    full, sliding = (nested.values.get(f"{kind}_attention") for kind in ("full", "sliding"))
    own = {"rope_parameters": sliding, "rope_theta": hf.get(sliding_theta)}
    return Fields({**hf, "rope_parameters": full}), Fields(own)


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


def _read_longrope(
    fields: Fields, part: Fields, theta: float, max_position: int, pairs: int
) -> RopeConfig:
    """LongRoPE; published files have `original_max_position_embeddings` at the top level."""
    key = "original_max_position_embeddings"
    where = part if part.values.get(key) is not None else fields
    original = where.integer(key, max_position)
    factor = part.optional_number("factor", None) or max_position / original
    usual = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return RopeConfig(
        theta,
        "longrope",
        factor,
        original_max_position=original,
        attention_factor=part.optional_number("attention_factor", None) or usual,
        short_factors=part.numbers("short_factor", pairs),
        long_factors=part.numbers("long_factor", pairs),
    )


def _nonzero(part: Fields, key: str) -> float | None:
    """A number, or None for null and zero."""
    return None if part.values.get(key) is None else part.number(key) or None


def write_rope_scaling(rope: RopeConfig) -> dict[str, object] | None:
    """Inverse of `read_rope`, without the base."""
    if rope.kind == "default":
        return None
    scaling: dict[str, object] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind == "proportional":
        del scaling["factor"]
        if rope.factor != 1.0:
            scaling["factor"] = rope.factor
    if rope.kind == "longrope":
        scaling["original_max_position_embeddings"] = rope.original_max_position
        scaling["attention_factor"] = rope.attention_factor
        scaling["short_factor"] = list(rope.short_factors)
        scaling["long_factor"] = list(rope.long_factors)
    if rope.kind == "llama3":
        scaling["low_freq_factor"] = rope.low_freq_factor
        scaling["high_freq_factor"] = rope.high_freq_factor
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "dynamic":
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "yarn":
        scaling["original_max_position_embeddings"] = rope.original_max_position
        for key in ("beta_fast", "beta_slow", "truncate", "attention_factor"):
            scaling[key] = getattr(rope, key)
        for key in ("mscale", "mscale_all_dim"):
            if getattr(rope, key) is not None:
                scaling[key] = getattr(rope, key)
    return scaling


def written_share(rope: RopeConfig, head_dim: int) -> float:
    """Rotated share of a head such that `int(head_dim * share)` round-trips."""
    if rope.rotated is None:
        return 1.0
    share = rope.rotated / head_dim
    return share if int(head_dim * share) == rope.rotated else math.nextafter(share, 1.0)


def _rope_part(fields: Fields) -> Fields:
    old, new = fields.part("rope_scaling"), fields.part("rope_parameters")
    if old is not None and new is not None and dict(old.values) != dict(new.values):
        fields.refuse("rope_scaling", "the same as 'rope_parameters', or only one of the two")
    return new or old or Fields({}, f"{fields.where}: rope_parameters")


def _rope_kind(part: Fields) -> str:
    known = {kind: kind for kind in _ROPE_KEYS}
    if "long_factor" in part.values:  # as in the first Phi-3 files
        known |= {"su": "longrope", "yarn": "longrope"}
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
