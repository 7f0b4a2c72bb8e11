"""A family derived from a model folder, for architectures without a file here.

In: a parsed config.json and tensor shapes. Out: a family for the registry. What is not understood
is refused by name; what a folder cannot show is listed in ASSUMED. Must not know files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.errors import CheckpointError
from jengine.models.importing.layout import Layout, Shape, read_layout
from jengine.models.reading.fields import Fields
from jengine.models.reading.hf_config import (
    Defaults,
    read_architecture,
    read_attention,
    read_decoder,
    read_mlp,
)
from jengine.models.reading.hf_layers import read_layer_types
from jengine.models.unread import is_harmless, unread_keys

ASSUMED = (
    "norms multiply by their weights, not by one plus these",
    "lane i of a head's first half rotates with lane i of its second half",
    "embeddings, scores, residuals and logits have no factors",
    "a gate comes before what it gates",
)
# Other families' names of keys.
ALIASES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "n_ctx": "max_position_embeddings",
    "layer_norm_eps": "rms_norm_eps",
    "layer_norm_epsilon": "rms_norm_eps",
    "norm_epsilon": "rms_norm_eps",
    "norm_eps": "rms_norm_eps",
    "hidden_activation": "hidden_act",
    "activation_function": "hidden_act",
    "rotary_pct": "partial_rotary_factor",
    "rotary_emb_base": "rope_theta",
}
# What the tensors say, whatever these keys do.
SHOWN_BY_TENSORS = {
    "attention_bias", "mlp_bias", "qkv_bias", "use_bias", "bias", "use_qk_norm", "qk_norm",
    "qk_layernorm", "tie_word_embeddings", "parallel_attn", "use_parallel_residual",
}  # fmt: skip


class ImportedFamily:
    """One architecture, as `register_model` takes it."""

    def __init__(self, hf: Mapping[str, object], shapes: Mapping[str, Shape]):
        self.ARCHITECTURES: tuple[str, ...] = (read_architecture(Fields(hf)),)
        self.MODELS = f"{self.ARCHITECTURES[0]}, imported"
        self.layout = read_layout(shapes)
        self.NAMES = self.layout.names
        self._hf = dict(hf)
        _refuse_unread(hf, self.layout)

    def read_config(self, hf: Mapping[str, object]) -> ModelConfig:
        return _read(hf, self.layout)

    def write_config(self, config: ModelConfig) -> dict[str, object]:
        """The original config.json with the dtype of these weights."""
        return {**self._hf, "torch_dtype": config.dtype, "dtype": config.dtype}


def _read(hf: Mapping[str, object], layout: Layout) -> ModelConfig:
    fields = Fields(_by_usual_names(hf))
    _check_sizes(fields, layout)
    defaults = Defaults(
        layout.vocab_size, layout.hidden_size, layout.inner_size, layout.layers, 0, None, None,
        max_position=0, norm_eps=0.0, partial_rotary=1.0, tie_embeddings=not layout.has_head,
    )  # fmt: skip
    for key in ("num_attention_heads", "max_position_embeddings", "rms_norm_eps", "hidden_act"):
        if fields.values.get(key) is None:
            fields.refuse(key, "a value: it is not assumed for a model without a family")
    attention = read_attention(
        fields, defaults, qkv_bias=layout.qkv_bias, output_bias=layout.output_bias,
        qk_norm=layout.qk_norm,
    )  # fmt: skip
    mlp = replace(read_mlp(fields, defaults), gated=layout.gated, biases=layout.mlp_bias)
    windows = _windows(fields, layout.layers)
    config = read_decoder(fields, defaults, _layers(attention, mlp, windows))
    return replace(
        config, norm="layer" if layout.layer_norm else "rms", norm_places=layout.norms.places,
        block=layout.norms.block, tie_embeddings=not layout.has_head, head_bias=layout.head_bias,
    )  # fmt: skip


def _layers(
    attention: AttentionConfig, mlp: MlpConfig, windows: list[int | None]
) -> tuple[LayerConfig, ...]:
    return tuple(LayerConfig(replace(attention, window=window), mlp) for window in windows)


def _windows(fields: Fields, layers: int) -> list[int | None]:
    """Window per layer: on the layers that `layer_types` names, or on all."""
    window = fields.optional_integer("sliding_window", None)
    if fields.flag("use_sliding_window", window is not None) is False:
        window = None
    if fields.values.get("layer_types") is None:
        return [window] * layers
    kinds = read_layer_types(fields, layers)
    if "sliding" in kinds and window is None:
        fields.refuse("layer_types", "'sliding_window' for those layers")
    return [window if kind == "sliding" else None for kind in kinds]


def _check_sizes(fields: Fields, layout: Layout) -> None:
    """Raise CheckpointError if config.json and tensor shapes disagree."""
    sizes = {
        "hidden_size": layout.hidden_size, "num_hidden_layers": layout.layers,
        "vocab_size": layout.vocab_size, "intermediate_size": layout.inner_size,
    }  # fmt: skip
    for key, size in sizes.items():
        if fields.integer(key, size) != size:
            fields.refuse(key, f"{size}, as the tensors say")


def _by_usual_names(hf: Mapping[str, object]) -> Mapping[str, object]:
    """Add each aliased key under its usual name."""
    found = {ours: hf[name] for name, ours in ALIASES.items() if name in hf and ours not in hf}
    return {**hf, **found}


def _refuse_unread(hf: Mapping[str, object], layout: Layout) -> None:
    config = _read(hf, layout)
    known = SHOWN_BY_TENSORS | {"architectures", "auto_map"}
    if all(layer.mixer.window is None for layer in config.layers):
        known.add("max_window_layers")  # where windows begin, if there are some
    unread = unread_keys(hf, partial(_read, layout=layout))
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
    """Whether this value of an unknown key means "off"."""
    if isinstance(value, bool) or value is None:
        return not value
    return value in (0, 1, "", [], {})
