"""Finds which engine features a model supports, by running the checks of an engine's start.

In: a ModelConfig. Out: a sentence per feature. No weights are read, nothing is compiled.
"""

from __future__ import annotations

import math
from typing import Any

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import SNAPSHOT_EVERY, runner_config
from jengine.config import ModelConfig
from jengine.errors import JengineError
from jengine.lora.peft_files import places_of
from jengine.models import registry
from jengine.models.quantized import METHODS, rounded_paths, with_quantization
from jengine.models.stages import stage_layout
from jengine.weights.abstract import abstract_model

ROUNDED = ("int8", "int4")
NGRAM = {"method": "ngram", "num_speculative_tokens": 2}


def model_features(config: ModelConfig) -> dict[str, str]:
    """Per feature: that the model supports it, or why not."""
    return {
        "quantized weights": _quantized(config),
        "adapters": _refused(config, enable_lora=True) or _adapters(config),
        "tensor parallelism": _tensor(config),
        "pipeline stages": _refused(config, pipeline_parallel_size=2) or "yes",
        "prefix cache": _prefix(config),
        "drafts": _refused(config, speculative_config=NGRAM) or _drafts(config),
    }


def _refused(config: ModelConfig, **settings: Any) -> str:
    """The error that starting with these settings would raise; "" for none."""
    try:
        asked = EngineArgs.checked("jengine", model="model", **settings).groups
        stages = stage_layout(config, asked.parallel.pipeline_parallel_size or 1).num_stages
        runner_config(asked, config, schedule_config(asked, config), stages)
    except JengineError as why:
        return f"no: {why}"
    return ""


def _quantized(config: ModelConfig) -> str:
    if config.quantization is not None:
        stored = {METHODS[one.layout] for _, one in config.quantization.groups}
        return f"as the checkpoint has them: {' and '.join(sorted(stored))}"
    try:
        counts = {
            len(rounded_paths(abstract_model(with_quantization(config, name)))) for name in ROUNDED
        }
    except JengineError as why:
        return f"no: {why}"
    return f"{' or '.join(ROUNDED)} when loaded: {max(counts)} matrices, without routers and head"


def _adapters(config: ModelConfig) -> str:
    places = places_of(config)
    modules = ", ".join(sorted({name.rpartition(".")[2] for name in places}))
    experts = any(own[0].group is not None for own in places.values())
    return f"of {modules}{', experts included' if experts else ''}"


def _tensor(config: ModelConfig) -> str:
    heads = math.gcd(*(spec.kv_heads for spec in config.cache_specs))
    caches = f"; KV caches are divided by up to {heads}, and copies beyond" if heads else ""
    return f"over any number of devices{caches}"


def _prefix(config: ModelConfig) -> str:
    if config.sees_ahead:
        return "no: tokens attend to later ones, so prompts run whole and nothing is kept"
    if config.has_recurrent:
        return f"yes; states of recurrent layers are kept every {SNAPSHOT_EVERY} tokens"
    return "yes"


def _drafts(config: ModelConfig) -> str:
    own = registry.tensor_names(config).drafting is not None
    return "by n-grams, suffixes, other models" + (", and layers of its own (mtp)" if own else "")
