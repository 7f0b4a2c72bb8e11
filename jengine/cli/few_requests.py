"""Engine settings for a single user at a terminal: few rows and one step variant, for a quick
start.

In: the user's settings, and sampling settings of the model's generation_config.json. Out: the
settings with these defaults. Other variants compile at first use.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jengine.assembly.settings.args import EngineArgs
from jengine.hub.wanted import SETTINGS
from jengine.sampling_params import NEUTRAL
from jengine.weights.resolve import resolve_model


def few_requests(
    settings: Mapping[str, Any], sampling: Mapping[str, Any], most: int | None
) -> dict[str, Any]:
    """Settings for at most `most` concurrent requests (None: many) with this sampling."""
    result = dict(settings)
    if most is not None:
        result.setdefault("max_num_seqs", most)
    # Strict mode compiles everything at start; deterministic mode has a single program.
    if not result.get("strict") and not result.get("deterministic"):
        given = result.get("compilation_config", {})
        usual = {"variants": [variant(sampling)]}
        result["compilation_config"] = {**usual, **given}
    return result


def models_sampling(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults in the model's generation_config.json."""
    if settings.get("generation_config", "auto") != "auto":
        return {}
    options = EngineArgs.checked("jengine", model=model, **settings).hub
    folder = resolve_model(model, replace(options, wanted=SETTINGS))
    # imports numpy, which `--help` avoids
    reader = importlib.import_module("jengine.weights.generation_config")
    return reader.read_generation_config(folder)


def variant(sampling: Mapping[str, Any]) -> str:
    """The cheapest step variant for this sampling."""
    if sampling.get("logprobs") is not None:
        return "full"
    if any(sampling.get(name, usual) != usual for name, usual in NEUTRAL.items()):
        return "adjusted"
    return "greedy" if sampling.get("temperature") == 0 else "sampled"
