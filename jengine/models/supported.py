"""Table of supported models, for the documentation's page on models."""

from __future__ import annotations

from jengine.config import RECURRENT, AttentionConfig, LatentConfig, ModelConfig
from jengine.models import registry
from jengine.models.architectures import FAMILIES

# One config.json for all families: each reads the keys that it knows, with defaults for others.
SAMPLE = {
    "bos_token_id": 1,
    "eos_token_id": 2,
    "image_token_id": 5,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 9,
    "num_experts_per_tok": 2,
    "hybrid_override_pattern": "M*-" * 3,
    "vision_config": {"hidden_size": 4096, "out_hidden_size": 4096},
    "text_config": {"hidden_size": 4096},
}


def markdown_table() -> str:
    """One row per architecture."""
    rows = [
        f"| {registry.models_of(name)} | `{name}` | {layers_of(sample(name))} |"
        for name in FAMILIES
    ]
    header = ["| models | `architectures` in config.json | layers |", "|---|---|---|"]
    return "\n".join([*header, *rows])


def sample(architecture: str) -> ModelConfig:
    """The family's default model of an architecture."""
    return registry.model_config({**SAMPLE, "architectures": [architecture]})


def layers_of(config: ModelConfig) -> str:
    """Layer properties that decide which features a model supports."""
    mixers = [layer.mixer for layer in config.layers]
    kinds = {
        "recurrent": all(isinstance(mixer, RECURRENT) for mixer in mixers),
        "recurrent and attention": config.has_recurrent
        and not all(isinstance(mixer, RECURRENT) for mixer in mixers),
        "attention": not config.has_recurrent and isinstance(mixers[0], AttentionConfig),
        "latent attention": isinstance(mixers[0], LatentConfig),
        "experts": config.has_experts,
        "per-layer inputs": config.layer_inputs is not None,
        "bidirectional": config.sees_ahead,
        "images": config.vision is not None,
        "audio": config.speech is not None,
        "text encoder": config.source_encoder is not None,
    }
    return ", ".join(kind for kind, is_there in kinds.items() if is_there)
