"""Naming schemes of a decoder layer's norms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jengine.models.importing.meanings import Meaning
from jengine.models.importing.tensors import Shape, listed, refuse

Places = Literal["before", "after", "around", "sums"]
Block = Literal["serial", "parallel", "parallel_one_norm"]


@dataclass(frozen=True)
class NormNames:
    """A known naming scheme of a layer's norms and their places."""

    places: Places
    names: Mapping[str, str] = field(default_factory=dict)
    block: Block = "serial"


BEFORE = (
    ("input_layernorm", "post_attention_layernorm"), ("input_layernorm", "pre_mlp_layernorm"),
    ("ln_1", "ln_2"), ("attention_norm", "ffn_norm"), ("attn_norm", "mlp_norm"),
    ("attn_norm", "ffn_norm"), ("norm1", "norm2"), ("norm_1", "norm_2"),
    ("attention_layernorm", "feedforward_layernorm"),
    ("input_layernorm", "pre_feedforward_layernorm"),
    ("self_attn_layer_norm", "final_layer_norm"),
)  # fmt: skip
# Before and after attention, before and after the feed-forward block.
AROUND = (
    ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
     "post_feedforward_layernorm"),
    ("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
    ("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
     "post_mlp_layernorm"),
    ("input_layernorm", "post_attn_norm", "post_attention_layernorm", "post_ffn_norm"),
    ("input_layernorm", "post_norm1", "post_attention_layernorm", "post_norm2"),
)  # fmt: skip
PLACES = ("before_attention", "after_attention", "before_mlp", "after_mlp")
NORMS = (
    *(NormNames("around", dict(zip(PLACES, names, strict=True))) for names in AROUND),
    NormNames(
        "after",
        {
            "after_attention": "post_attention_layernorm",
            "after_mlp": "post_feedforward_layernorm",
        },
    ),
    *(NormNames("before", {"before_attention": one, "before_mlp": two}) for one, two in BEFORE),
    *(
        NormNames("before", {"before_attention": one}, "parallel_one_norm")
        for one in ("input_layernorm", "ln_1", "ln")
    ),
    NormNames("before", {"before_attention": "ln_attn", "before_mlp": "ln_mlp"}, "parallel"),
)


def read_norms(layer: Mapping[str, Shape], meaning: Meaning) -> NormNames:
    """The norm scheme of a layer. Raises CheckpointError."""
    found = {
        module
        for module, _, kind in (name.rpartition(".") for name in layer)
        if kind == "weight" and "." not in module and len(layer[f"{module}.weight"]) == 1
    }
    if meaning.norms is not None:
        if meaning.has_norms_of_sums:
            return NormNames("sums", dict(zip(PLACES[1::2], meaning.norms, strict=False)))
        return NormNames("before", dict(zip(PLACES[::2], meaning.norms, strict=False)))
    for one in NORMS:
        if set(one.names.values()) == found:
            return one
    refuse(f"a layer has the norms {listed(sorted(found))}: their places are not known")
