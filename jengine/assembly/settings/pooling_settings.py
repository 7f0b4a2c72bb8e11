"""Settings of pooling models: runner, conversion, pooler. No jax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from jengine.config import PoolerConfig
from jengine.config.pooling import PoolingTask, SequencePooling, TokenPooling
from jengine.errors import ConfigError, UnsupportedFeature, nearest_name

# vLLM's former `task` -> (runner, convert).
TASKS = {
    "auto": ("auto", "auto"),
    "generate": ("generate", "auto"),
    "embed": ("pooling", "embed"),
    "embedding": ("pooling", "embed"),
    "encode": ("pooling", "auto"),
    "classify": ("pooling", "classify"),
    "score": ("pooling", "classify"),
    "reward": ("pooling", "auto"),
    "token_embed": ("pooling", "embed"),
    "token_classify": ("pooling", "classify"),
}
CHOICES = {
    "task": get_args(PoolingTask),
    "seq_pooling_type": get_args(SequencePooling),
    "tok_pooling_type": get_args(TokenPooling),
    "pooling_type": (*get_args(SequencePooling), *get_args(TokenPooling)),
}


def checked_pooler_config(given: Any) -> PoolerConfig | None:
    """A PoolerConfig from one or from a dict; None stays None."""
    if given is None:
        return None
    if isinstance(given, PoolerConfig):
        config = given
    elif isinstance(given, Mapping):
        known = [item.name for item in fields(PoolerConfig)]
        for name in given:
            if name not in known:
                near = nearest_name(str(name), known)
                raise ConfigError(
                    f"pooler_config has no key {name!r}. Known: {', '.join(known)}.{near}"
                )
        config = PoolerConfig(**given)
    else:
        raise ConfigError(f"pooler_config={given!r:.80}: expected a PoolerConfig or a dict.")
    _check(config)
    return config


def _check(config: PoolerConfig) -> None:
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value is not None and value not in choices:
            raise ConfigError(
                f"pooler_config {name}={value!r}: expected one of {', '.join(choices)}."
            )
    both = "seq_pooling_type" if config.pooling_type in CHOICES["seq_pooling_type"] else ""
    both = both or "tok_pooling_type"
    if config.pooling_type is not None and getattr(config, both) is not None:
        raise ConfigError(f"pooler_config: pooling_type and {both} are both set; give one.")
    if config.logit_sigma == 0:
        raise ConfigError("pooler_config logit_sigma=0: scores are divided by it.")
    if config.enable_chunked_processing or config.max_embed_len is not None:
        raise UnsupportedFeature(
            "pooler_config enable_chunked_processing and max_embed_len: averaging embeddings of "
            "a long text's parts is not built yet. Cut texts with truncate_prompt_tokens."
        )
    numbers = get_type_hints(PoolerConfig)
    for name in ("dimensions", "step_tag_id"):
        value = getattr(config, name)
        if value is not None and (type(value) is not int or value < (name != "step_tag_id")):
            raise ConfigError(f"pooler_config {name}={value!r}: expected {numbers[name]}.")


def runner_and_conversion(runner: str, convert: str, task: str | None) -> tuple[Any, Any]:
    """Resolve `task` into (runner, convert); without a task both are returned unchanged."""
    if task is None:
        return runner, convert
    if task not in TASKS:
        raise ConfigError(f"task={task!r}: expected one of {', '.join(TASKS)}.")
    of_task = TASKS[task]
    if runner not in ("auto", of_task[0]):
        raise ConfigError(f"task={task!r} with runner={runner!r}: give runner alone.")
    return of_task[0], of_task[1] if convert == "auto" else convert


def checked_overrides(given: Any) -> dict[str, Any] | None:
    """Validate entries that override config.json."""
    if given is None or isinstance(given, Mapping):
        return dict(given) if given else None
    if callable(given):
        raise UnsupportedFeature(
            "hf_overrides as a function is not built; give a dict of the entries to replace."
        )
    raise ConfigError(f"hf_overrides={given!r:.80}: expected a dict.")
