"""Parses and checks vLLM's `speculative_config`.

In: the user's dictionary. Out: a SpeculativeConfig, or a ConfigError that names the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from jengine.config import MODEL_METHODS, SpeculativeConfig
from jengine.errors import ConfigError, UnsupportedFeature, nearest_name

HOST_METHODS = ("ngram", "suffix")
METHODS = (*HOST_METHODS, *MODEL_METHODS)
# Parts of a model's name that say its method, where none is given; as in vLLM.
NAMED = (("eagle3", "eagle3"), ("eagle-", "eagle"), ("demo-eagle", "eagle"))
# Older names of vLLM for "mtp": the model says which kind it has.
MTP_NAMES = ("deepseek_mtp", "glm4_moe_mtp", "qwen3_next_mtp", "qwen3_5_mtp")
# Methods of vLLM that are not built.
UNBUILT_METHODS = (
    "mlp_speculator", "dflash", "dspark", "extract_hidden_states", "custom_class",
)  # fmt: skip


def speculative_config(given: Mapping[str, Any]) -> SpeculativeConfig:
    """Parse a user's dictionary and fill in derived settings. Raises ConfigError."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"speculative_config={given!r}: expected a dict such as "
            "{'method': 'ngram', 'num_speculative_tokens': 4}."
        )
    keys = {name: value for name, value in given.items() if value is not None}
    method = method_of(keys)
    keys.pop("revision", None)  # read where the model's folder is found
    if method in HOST_METHODS:
        keys.pop("model", None)  # it may be the method's name
    check_names(keys)
    settings: dict[str, Any] = {**keys, "method": method}
    if "model" in keys:
        settings["model"] = str(keys["model"])
    if method == "ngram":
        settings.update(lookup_sizes(keys))
    if "num_speculative_tokens" not in keys:
        if method != "suffix":
            raise ConfigError(
                f"speculative_config for method={method!r} has no num_speculative_tokens; give "
                "the most draft tokens of a step, such as 4."
            )
        depth = SpeculativeConfig.suffix_decoding_max_tree_depth
        settings["num_speculative_tokens"] = keys.get("suffix_decoding_max_tree_depth", depth)
    config = SpeculativeConfig(**settings)
    check_values(config)
    return config


def check_values(config: SpeculativeConfig) -> None:
    for name in ("suffix_decoding_max_tree_depth", "num_speculative_tokens", "prompt_lookup_min",
                 "prompt_lookup_max"):  # fmt: skip
        expect_integer(name, getattr(config, name), 1)
    expect_integer(
        "suffix_decoding_max_cached_requests", config.suffix_decoding_max_cached_requests, 0
    )
    if config.prompt_lookup_min > config.prompt_lookup_max:
        raise ConfigError(
            f"prompt_lookup_min={config.prompt_lookup_min} must be <= "
            f"prompt_lookup_max={config.prompt_lookup_max}."
        )
    factor, least = config.suffix_decoding_max_spec_factor, config.suffix_decoding_min_token_prob
    expect_number("suffix_decoding_max_spec_factor", factor, 0.0, float("inf"))
    expect_number("suffix_decoding_min_token_prob", least, 0.0, 1.0)
    for name in ("adaptive", "parallel_drafting"):
        if not isinstance(value := getattr(config, name), bool):
            raise ConfigError(f"{name}={value!r} must be true or false.")
    if config.parallel_drafting and config.method != "draft_model":
        raise UnsupportedFeature(
            f"parallel_drafting=True with method={config.method!r} is not built: expected "
            "method='draft_model', with a model that was trained to draft in one pass."
        )


def method_of(keys: Mapping[str, Any]) -> str:
    """Method of a dictionary; as in vLLM, `model` alone may name it."""
    method, model = keys.get("method"), keys.get("model")
    if method is None and model in ("ngram", "[ngram]", "suffix"):
        method = model
    if method in ("[ngram]", "ngram_gpu"):
        method = "ngram"
    if method in MTP_NAMES:
        method = "mtp"
    if method is None and model is not None:
        name = Path(str(model)).name.lower()
        method = next((one for part, one in NAMED if part in name), "draft_model")
    if method in UNBUILT_METHODS or str(method).endswith("_mtp"):
        raise UnsupportedFeature(
            f"speculative_config with method={method!r}: this method is not built. "
            f"Built are: {', '.join(METHODS)}."
        )
    if method not in METHODS:
        raise ConfigError(
            f"speculative_config with method={method!r}, expected one of {', '.join(METHODS)}."
            f"{nearest_name(str(method), METHODS)}"
        )
    own_layer = method == "mtp" and model is None
    if method in MODEL_METHODS and not own_layer and not isinstance(model, str | Path):
        raise ConfigError(
            f"speculative_config with method={method!r} and model={model!r}: expected the folder "
            "of the model that drafts."
        )
    return str(method)


def check_names(keys: Mapping[str, Any]) -> None:
    """Raise ConfigError for a key that is not known."""
    known = [field.name for field in fields(SpeculativeConfig) if field.name != "draft_cost"]
    for name in keys:
        if name not in known:
            raise ConfigError(
                f"speculative_config has an unknown key {name!r}."
                f"{nearest_name(name, known)} Known keys: {', '.join(known)}."
            )


def lookup_sizes(keys: Mapping[str, Any]) -> dict[str, Any]:
    """prompt_lookup_min and _max; each defaults to the other."""
    least, most = keys.get("prompt_lookup_min"), keys.get("prompt_lookup_max")
    if least is None and most is None:
        return {}
    return {
        "prompt_lookup_min": most if least is None else least,
        "prompt_lookup_max": least if most is None else most,
    }


def expect_integer(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r} must be an integer >= {least}.")


def expect_number(name: str, value: Any, least: float, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        raise ConfigError(f"{name}={value!r} must be a number from {least} to {most}.")
