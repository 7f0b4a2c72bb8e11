"""A family derived from a model folder, for architectures without a built-in family.

In: a parsed config.json and tensor shapes. Out: a family for the registry. What is not understood
is refused by name; what a folder cannot show is a row of `meanings`, or listed in ASSUMED. Must not
know files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from jengine.config import HeadTransformConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.importing.decoder_layout import DecoderLayout, read_layout
from jengine.models.importing.key_aliases import SHOWN_BY_TENSORS, by_usual_names
from jengine.models.importing.layers import read_layers
from jengine.models.importing.meanings import MEANINGS, PLAIN_MEANING, Meaning
from jengine.models.importing.tensors import Shape
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_activation,
    read_architecture,
    read_decoder,
)
from jengine.models.unread import is_harmless, unread_keys

ASSUMED = (
    "norms multiply by their weights, not by one plus these",
    "lane i of a head's first half rotates with lane i of its second half",
    "embeddings, scores, residuals and logits have no factors",
    "a gate comes before what it gates",
)


class ImportedFamily:
    """One architecture, as `register_model` takes it."""

    def __init__(self, hf: Mapping[str, object], shapes: Mapping[str, Shape]):
        self.ARCHITECTURES: tuple[str, ...] = (read_architecture(Fields(hf)),)
        self.MODELS = f"{self.ARCHITECTURES[0]}, imported"
        self.meaning = MEANINGS.get(self.ARCHITECTURES[0], PLAIN_MEANING)
        self.layout = read_layout(shapes, self.meaning)
        self.NAMES = self.layout.names
        self._hf = dict(hf)
        _refuse_unread(hf, self.layout, self.meaning)

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        return _read(hf, self.layout, self.meaning)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        """The original config.json with the current dtype."""
        return {**self._hf, "torch_dtype": config.dtype, "dtype": config.dtype}


def _read(hf: Mapping[str, object], layout: DecoderLayout, meaning: Meaning) -> ModelConfig:
    fields = Fields(by_usual_names(hf, meaning))
    _check_sizes(fields, layout)
    for key, value in meaning.fixed.items():
        if key in hf and hf[key] != value:
            Fields(hf).refuse(key, f"{value}: what another value does is not built")
    for key, value in meaning.stated.items():
        if hf.get(key) != value:
            Fields(hf).refuse(key, f"{value}, without which the class does something else")
    defaults = Defaults(
        layout.vocab_size, layout.hidden_size, 0, layout.layers, 0, None, None,
        max_position=0, norm_eps=meaning.norm_eps or 0.0, partial_rotary=meaning.partial_rotary,
        tie_embeddings=not layout.has_head,
    )  # fmt: skip
    required = {"num_attention_heads", "max_position_embeddings", "hidden_act", "rms_norm_eps"}
    said = {"hidden_act"} if meaning.activation else set()
    said |= {"rms_norm_eps"} if meaning.norm_eps else set()
    for key in sorted(required - said):
        if fields.values.get(key) is None:
            fields.refuse(key, "a value: it is not assumed for a model without a family")
    config = read_decoder(fields, defaults, read_layers(fields, defaults, layout, meaning))
    usual = "layer" if layout.layer_norm else "rms"
    return replace(
        config, norm=meaning.norm or usual, norm_places=layout.norms.places,
        block=layout.norms.block, tie_embeddings=not layout.has_head, head_bias=layout.head_bias,
        learned_positions=layout.positions > 0, position_offset=meaning.position_offset,
        max_position=layout.positions - meaning.position_offset
        if layout.positions
        else config.max_position,
        token_types=layout.token_types, head_transform=_head_transform(fields, layout, meaning),
        embed_norm=meaning.embed_norm, norm_eps=meaning.norm_eps or config.norm_eps,
        **_factors(fields, layout, meaning),
    )  # fmt: skip


def _head_transform(
    fields: Fields, layout: DecoderLayout, meaning: Meaning
) -> HeadTransformConfig | None:
    if layout.transform_bias is None:
        return None
    activation = meaning.head_activation or read_activation(fields, "hidden_act", "")
    return HeadTransformConfig(activation, layout.transform_bias)


def _factors(fields: Fields, layout: DecoderLayout, meaning: Meaning) -> dict[str, Any]:
    """Multipliers and soft caps that the architecture has."""
    found: dict[str, Any] = {}
    has = meaning.factors.__contains__
    if has("embedding_multiplier"):
        found["embed_scale"] = fields.number("embedding_multiplier")
    if meaning.scales_embeddings or (
        has("scale_embedding") and fields.flag("scale_embedding", False)
    ):
        found["embed_scale"] = layout.hidden_size**0.5
    if has("residual_multiplier"):
        found["residual_scale"] = fields.number("residual_multiplier")
    if has("logits_scaling"):
        scale = fields.number("logits_scaling", above_minimum=True)
        found["logit_scale"] = 1.0 / scale if meaning.divides_logits else scale
    if has("logit_scale"):
        found["logit_scale"] = fields.number("logit_scale")
    if has("final_logit_softcapping"):
        found["logit_soft_cap"] = fields.optional_number("final_logit_softcapping", None)
    return found


def _check_sizes(fields: Fields, layout: DecoderLayout) -> None:
    """Raise CheckpointError if config.json and tensor shapes disagree."""
    sizes = {
        "hidden_size": layout.hidden_size, "num_hidden_layers": layout.layers,
        "vocab_size": layout.vocab_size,
    }  # fmt: skip
    if layout.inner_size is not None:
        sizes["intermediate_size"] = layout.inner_size
    for key, size in sizes.items():
        if fields.values.get(key) is not None and fields.integer(key) != size:
            fields.refuse(key, f"{size}, as the tensors say")


def _refuse_unread(hf: Mapping[str, object], layout: DecoderLayout, meaning: Meaning) -> None:
    config = _read(hf, layout, meaning)
    known = SHOWN_BY_TENSORS | {"architectures", "auto_map", *meaning.without_meaning}
    if all(layer.mixer.window is None for layer in config.layers):
        # Without windows these have no effect.
        known |= {"max_window_layers", "rope_parameters.sliding_attention", "sliding_window"}
    unread = unread_keys(hf, partial(_read, layout=layout, meaning=meaning))
    unknown = {
        key: value
        for key, value in unread.items()
        if not (key in known or is_harmless(key) or _asks_for_nothing(value))
    }
    if unknown:
        shown = ", ".join(f"{key}={value!r:.60}" for key, value in unknown.items())
        raise CheckpointError(
            f"config.json: {shown}: what this does to the model is not known here, so it is not"
            " loaded as if it were not there."
        )


def _asks_for_nothing(value: object) -> bool:
    """Whether this value of an unknown key means that it is off."""
    if isinstance(value, bool) or value is None:
        return not value
    return value in (0, 1, "", [], {})
