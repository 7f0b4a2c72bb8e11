"""Whether a model pools, and how: from its class, sentence-transformers' files and the settings. No
jax.

In: EngineArgs, a folder and the model's config. Out: the config, with a PoolingConfig if it pools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from jengine.assembly.settings.model_args import ModelSettings
from jengine.config import HeadLayer, ModelConfig, PoolerConfig
from jengine.errors import CheckpointError, ConfigError
from jengine.models import registry
from jengine.models.reading.pooling import (
    ACTIVATIONS,
    Convert,
    PoolingFacts,
    pools_by_name,
    read_pooling,
)
from jengine.text.tokenizer import Tokenizer
from jengine.weights.sentence_transformers import SentenceModel, read_sentence_model


def with_pooling(
    asked: ModelSettings,
    config: ModelConfig,
    hf: Mapping[str, object],
    folder: Path,
    tokenizer: Callable[[], Tokenizer | None],
) -> ModelConfig:
    """Add the pooling config if the model is used for pooling; raises if it cannot be."""
    sentence = read_sentence_model(folder)
    if not is_pooling(asked, config, sentence):
        return config
    if hf.get("is_causal") is False and not config.sees_ahead:
        raise CheckpointError(
            f"config.json: is_causal=false: a {config.architecture} whose tokens attend to later "
            "ones is not built; its embeddings would be those of another model."
        )
    facts = PoolingFacts(
        convert=cast(Convert, asked.convert),
        user=asked.pooler_config or PoolerConfig(),
        token_ids=classifier_tokens(hf, tokenizer),
        prompts=own_prompts(hf),
    )
    if sentence is not None:
        facts = replace(
            facts,
            sequence=sentence.pooling,
            normalizes=sentence.normalizes if sentence.pooling else None,
            dense=dense_layers(sentence),
            prompts=facts.prompts or sentence.prompts,
        )
    own = registry.own_pooling(config, hf)
    pooling = read_pooling(hf, config, facts, own)
    if sentence is not None and sentence.max_length is not None:
        pooling = replace(pooling, max_length=sentence.max_length)
    if sentence is not None and sentence.lower_case:
        pooling = replace(pooling, lower_case=True)
    return replace(config, pooling=pooling)


def own_prompts(hf: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Named prompts in config.json, as in Jina's models."""
    given = hf.get("task_instructions")
    if not isinstance(given, Mapping):
        return ()
    return tuple((str(name), text) for name, text in given.items() if isinstance(text, str))


def is_pooling(asked: ModelSettings, config: ModelConfig, sentence: SentenceModel | None) -> bool:
    """Whether the model is used for pooling, by the settings or by its files."""
    by_name = pools_by_name(config.architecture)
    if asked.runner == "generate" and by_name:
        raise ConfigError(
            f"This model does not support `--runner generate`: its class is {config.architecture}, "
            "which has no output head. Use `--runner pooling` or `--runner auto`."
        )
    if asked.runner != "auto":
        return asked.runner == "pooling"
    converts = asked.convert in ("embed", "classify")
    return converts or by_name or (sentence is not None and sentence.pooling is not None)


def dense_layers(sentence: SentenceModel) -> tuple[HeadLayer, ...]:
    """The Dense modules that sentence-transformers stores in subfolders."""
    layers = []
    for module in sentence.dense:
        if module.activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{module.folder}/config.json: activation_function {module.activation!r}; expected "
                f"one of torch's {', '.join(ACTIVATIONS)}."
            )
        layers.append(
            HeadLayer(
                module.outputs, f"{module.folder}/linear", ACTIVATIONS[module.activation],
                bias=module.bias,
            )
        )  # fmt: skip
    return tuple(layers)


def classifier_tokens(
    hf: Mapping[str, object], tokenizer: Callable[[], Tokenizer | None]
) -> tuple[int, ...]:
    """Token ids of `classifier_from_token`, whose logits are class scores."""
    given: Any = hf.get("classifier_from_token")
    if given is None:
        return ()
    if not isinstance(given, list | tuple) or not given:
        raise ConfigError(f"classifier_from_token={given!r:.80}: expected a list of tokens.")
    if all(type(one) is int for one in given):
        return tuple(given)
    own = tokenizer()
    if own is None:
        raise ConfigError(
            f"classifier_from_token={given!r:.80} needs the tokenizer, which "
            "skip_tokenizer_init=True leaves out. Give token ids instead."
        )
    found: tuple[Any, ...] = tuple(own.hf.convert_tokens_to_ids(str(one)) for one in given)
    if any(one is None or one == own.hf.unk_token_id for one in found):
        raise ConfigError(f"classifier_from_token={given!r:.80}: not all are tokens of the model.")
    return found
