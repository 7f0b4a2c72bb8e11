"""Gemma 4's heads and MLPs, which differ between layers with and without a window.

In: metadata. Out: keys of config.json.
"""

from __future__ import annotations

from typing import Any

from jengine.weights.gguf.architectures import PATTERN
from jengine.weights.gguf.metadata import Metadata
from jengine.weights.gguf.rope import rotated_share

KV_HEADS, WIDTH = "attention.head_count_kv", "feed_forward_length"
INPUTS = "per_layer_token_embd.weight"


def heads_by_kind(fields: Metadata) -> dict[str, Any]:
    """Heads, rotations and MLPs of layers of either kind."""
    slides = [bool(one) for one in fields.each(PATTERN) or ()]
    if not slides or slides[-1]:
        raise fields.refuse(PATTERN, "a list of flags for all layers, false for the last one")
    full, own = (_head_dim(fields, ending) for ending in ("", "_swa"))
    widths = fields.each(WIDTH) or [fields.number(WIDTH)]
    first = slides.index(False)
    found: dict[str, Any] = {
        "global_head_dim": full,
        "head_dim": own,
        "num_global_key_value_heads": _kv_heads(fields, slides, False),
        "num_key_value_heads": _kv_heads(fields, slides, True),
        "attention_k_eq_v": not fields.has(f"blk.{first}.attn_v.weight"),
        "intermediate_size": min(widths),
        "use_double_wide_mlp": max(widths) > min(widths),
        "rope_theta": None,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": rotated_share(fields),
                "rope_theta": fields.number("rope.freq_base"),
            },
            "sliding_attention": {"rope_theta": fields.number("rope.freq_base_swa", 10000.0)},
        },
    }
    if fields.has(INPUTS):
        found["vocab_size_per_layer_input"] = fields.matrix_shape(INPUTS)[0]
    return found


def _head_dim(fields: Metadata, ending: str) -> int:
    dim = fields.number(f"attention.key_length{ending}")
    for key in (f"attention.value_length{ending}", f"rope.dimension_count{ending}"):
        if fields.number(key, dim) != dim:
            raise fields.refuse(key, f"the {dim} of attention.key_length{ending}")
    return dim


def _kv_heads(fields: Metadata, slides: list[bool], sliding: bool) -> int:
    """KV heads of one kind of layers."""
    counts = fields.each(KV_HEADS) or [fields.number(KV_HEADS)] * len(slides)
    found = {count for count, one in zip(counts, slides, strict=False) if one is sliding}
    if len(found) > 1:
        raise fields.refuse(KV_HEADS, "one number for layers with a window, one for the others")
    return found.pop() if found else max(counts)
