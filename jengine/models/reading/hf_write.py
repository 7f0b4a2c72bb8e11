"""Writes the shared decoder's config as config.json keys: the inverse of hf_config.

In: a ModelConfig. Out: keys that transformers 4 and 5 both read. Families add their own.
"""

from __future__ import annotations

from typing import TypeVar

from jengine.config import (
    AttentionConfig,
    ExpertsConfig,
    FfnConfig,
    MlpConfig,
    ModelConfig,
    SingleMixer,
)
from jengine.errors import CheckpointError
from jengine.models.reading.hf_config import ACTIVATIONS
from jengine.models.reading.hf_layers import LAYER_TYPES
from jengine.models.reading.hf_rope import PARTIAL, write_rope_scaling, written_share

T = TypeVar("T")


def write_decoder(config: ModelConfig, norm_eps_key: str = "rms_norm_eps") -> dict[str, object]:
    """Inverse of `read_decoder`."""
    attention = written_attention(config)
    ropes = (mixer.rope for mixer in (attention, *_mixers(config)))
    rope = next((found for found in ropes if found is not None), None)
    partial = (
        {}
        if rope is None or rope.rotated is None
        else {PARTIAL: written_share(rope, attention.head_dim)}
    )
    # If the family's config.json cannot express unrotated layers, the result reads back as another
    # model, which `registry.write_config` refuses.
    rotation = (
        {} if rope is None else {"rope_theta": rope.theta, "rope_scaling": write_rope_scaling(rope)}
    )
    return {
        "hidden_size": config.hidden_size,
        "intermediate_size": written_ffn(config).intermediate_size,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "max_position_embeddings": config.max_position,
        norm_eps_key: config.norm_eps,
        **rotation,
        **partial,
        "hidden_act": write_activation(config),
        "tie_word_embeddings": config.tie_embeddings,
        **write_common(config),
    }


def written_attention(config: ModelConfig) -> AttentionConfig:
    """The attention that config.json describes: of the first full-attention layer, if any."""
    mixers = [mixer for mixer in _mixers(config) if isinstance(mixer, AttentionConfig)]
    return next((mixer for mixer in mixers if mixer.window is None), mixers[0])


def written_ffn(config: ModelConfig) -> FfnConfig:
    """The feed-forward block that config.json describes: the dense one if there are both kinds."""
    blocks = [layer.ffn for layer in config.layers]
    blocks = [block for block in blocks if block.active_size] or blocks
    return next((block for block in blocks if isinstance(block, MlpConfig)), blocks[0])


def written_experts(config: ModelConfig) -> ExpertsConfig:
    """The model's experts. Raises CheckpointError if it has none."""
    return written_part(config, ExpertsConfig, "experts")


def written_part(config: ModelConfig, kind: type[T], words: str) -> T:
    """The first mixer or feed-forward block of this class. Raises CheckpointError without one;
    `words` name it there."""
    for layer in config.layers:
        for part in (*layer.mixers, layer.ffn):
            if isinstance(part, kind):
                return part
    raise CheckpointError(
        f"A config.json of {config.architecture} cannot express a model without {words}."
    )


def written_biases(config: ModelConfig) -> bool:
    ffn = written_ffn(config)
    return isinstance(ffn, MlpConfig) and ffn.biases


def written_window(config: ModelConfig) -> int | None:
    """The model's sliding window, or None."""
    return next((mixer.window for mixer in _mixers(config) if mixer.window is not None), None)


def write_activation(config: ModelConfig) -> str:
    """Hugging Face's name of the activation."""
    return written_activation(written_ffn(config).activation)


def written_activation(ours: str) -> str:
    return next((theirs for theirs, known in ACTIVATIONS.items() if known == ours), "silu")


def write_common(config: ModelConfig) -> dict[str, object]:
    """Keys with the same name in all families."""
    eos = config.eos_token_ids
    return {
        "architectures": [config.architecture],
        "vocab_size": config.vocab_size,
        "initializer_range": config.initializer_range,
        "torch_dtype": config.dtype,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": None if not eos else eos[0] if len(eos) == 1 else list(eos),
    }


def write_layer_windows(config: ModelConfig) -> dict[str, object]:
    """Inverse of `read_layer_windows`."""
    window, kinds = written_window(config), write_layer_types(config)
    return {
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "max_window_layers": len(kinds) if window is None else kinds.index("sliding_attention"),
        "layer_types": kinds,
    }


def write_layer_types(config: ModelConfig) -> list[str]:
    names = {ours: theirs for theirs, ours in LAYER_TYPES.items()}
    return [names["full" if mixer.window is None else "sliding"] for mixer in _mixers(config)]


def _mixers(config: ModelConfig) -> list[SingleMixer]:
    return [mixer for layer in config.layers for mixer in layer.mixers]
