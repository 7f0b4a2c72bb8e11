"""Common parts of vision-language models' config.json files.

In: a mapping parsed from JSON. Out: the language model's part as one mapping, and fields of the
tower. Must not know families or tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jengine.config import AttentionConfig, ModelConfig, VisionActivation
from jengine.errors import CheckpointError
from jengine.models.reading.fields import Fields

# Top-level keys that apply to the language model too.
WHOLE = ("architectures", "dtype", "torch_dtype", "tie_word_embeddings")
MOST_VISION_LAYERS = 200
SECTIONS = "mrope_section"
ACTIVATIONS: dict[str, VisionActivation] = {
    "quick_gelu": "quick_gelu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "relu": "relu",
}
WRITTEN_ACTIVATIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def text_part(hf: Mapping[str, object]) -> dict[str, object]:
    """The language model's keys, under `text_config` (newer files) or at the top level."""
    nested = Fields(hf).part("text_config")
    if nested is None:
        return dict(hf)
    above = {key: hf[key] for key in WHOLE if hf.get(key) is not None}
    return {**nested.values, **above}


def vision_part(hf: Mapping[str, object]) -> Fields:
    found = Fields(hf).part("vision_config")
    if found is None:
        Fields(hf).refuse("vision_config", "the settings of the vision tower")
    return found


def read_vision_activation(
    fields: Fields, default: str, key: str = "hidden_act"
) -> VisionActivation:
    return fields.choice(key, default, ACTIVATIONS)


def without_sections(text: Mapping[str, object]) -> tuple[dict[str, object], tuple[int, ...], bool]:
    """Strip MRoPE: returns the keys with a plain rope, the sections of frame, row and column, and
    whether they are interleaved."""
    plain, sections, interleaved = dict(text), (), False
    for key in ("rope_scaling", "rope_parameters"):
        part = Fields(text).part(key)
        if part is None:
            continue
        values = dict(part.values)
        if SECTIONS in values:
            sections = part.integers(SECTIONS, None, maximum=4096, each="a number of pairs")
            if len(sections) != 3:
                part.refuse(SECTIONS, "three numbers of pairs")
            del values[SECTIONS]
        interleaved = interleaved or part.flag("mrope_interleaved", False)
        values.pop("mrope_interleaved", None)
        for name in ("rope_type", "type"):
            if values.get(name) == "mrope":
                values[name] = "default"
        plain[key] = values
    return plain, sections, interleaved


def with_sections(
    config: ModelConfig, sections: tuple[int, ...], *, interleaved: bool = False
) -> ModelConfig:
    """Set MRoPE sections on all layers."""
    layers = []
    for layer in config.layers:
        mixer = layer.mixer
        assert isinstance(mixer, AttentionConfig) and mixer.rope is not None, (
            "these families rotate"
        )
        pairs = (mixer.rope.rotated or mixer.head_dim) // 2
        if not interleaved and sum(sections) != pairs:
            raise CheckpointError(
                f"config.json: {SECTIONS!r}: given {list(sections)}, expected numbers that add up "
                f"to the {pairs} pairs of a head."
            )
        rope = replace(mixer.rope, sections=sections, interleaved=interleaved)
        layers.append(replace(layer, mixer=replace(mixer, rope=rope)))
    return replace(config, layers=tuple(layers))


def write_sections(written: Mapping[str, object], config: ModelConfig) -> dict[str, object]:
    """Add MRoPE sections to a written text config."""
    rope = config.layers[0].mixer.rope
    assert rope is not None, "these families rotate"
    scaling: dict[str, object] = {"rope_type": "default", SECTIONS: list(rope.sections)}
    if rope.interleaved:
        scaling["mrope_interleaved"] = True
    return {**written, "rope_scaling": scaling}


def read_width(fields: Fields, key: str, default: int, config: ModelConfig) -> int:
    """Output width of the tower. Raises CheckpointError unless it is the decoder's hidden size."""
    width = fields.integer(key, default)
    if width != config.hidden_size:
        fields.refuse(key, f"that of the language model ({config.hidden_size})")
    return width


def as_architecture(text: Mapping[str, object], architecture: str) -> dict[str, object]:
    """Set `architectures` of a text config."""
    return {**text, "architectures": [architecture]}


def read_tokens(fields: Fields, vocab: int, **defaults: int) -> dict[str, int]:
    """Special token ids `<name>_token_id`, with their defaults."""
    return {
        f"{name}_token": fields.integer(
            f"{name}_token_id", default, minimum=0, maximum=max(vocab - 1, 0)
        )
        for name, default in defaults.items()
    }
