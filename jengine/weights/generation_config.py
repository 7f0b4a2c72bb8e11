"""Reads JSON files of a model folder, and sampling defaults in generation_config.json. No jax.

In: a folder, or settings in place of its file. Out: validated sampling settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jengine.errors import CheckpointError, lfs_advice
from jengine.models.reading.fields import LARGEST_INTEGER, Fields
from jengine.weights.gguf.files import open_gguf
from jengine.weights.gguf.generation import generation_of
from jengine.weights.resolve import is_gguf

# Limits of numbers in generation_config.json, as arguments of Fields.number.
SAMPLING_NUMBERS: Mapping[str, dict[str, Any]] = {
    "temperature": {},
    "top_p": {"maximum": 1.0, "above_minimum": True},
    "min_p": {"maximum": 1.0},
    "repetition_penalty": {"above_minimum": True},
}
SAMPLING_INTEGERS = {"top_k": -1, "max_new_tokens": 1}
FORCED = "forced_bos_token_id"  # first token of the decoder in encoder-decoder models
GENERATION_KEYS = ("eos_token_id", *SAMPLING_NUMBERS, *SAMPLING_INTEGERS)


def read_json(file: Path) -> dict[str, object]:
    """Parse a JSON object from a file. Raises CheckpointError."""
    if not file.is_file():
        raise CheckpointError(f"{file.parent}: there is no {file.name} in this folder.")
    try:
        parsed = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        advice = lfs_advice(file)
        raise CheckpointError(f"{file}: cannot be read as JSON: {error}{advice}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{file}: expected a JSON object, given {type(parsed).__name__}.")
    return parsed


def read_generation_config(folder: Path) -> dict[str, object]:
    """Sampling settings of generation_config.json or a GGUF file; {} if there are none."""
    if is_gguf(folder):
        return generation_settings(generation_of(open_gguf(folder)), str(folder))
    file = folder / "generation_config.json"
    return generation_settings(read_json(file), str(file)) if file.exists() else {}


def generation_settings(values: object, where: str) -> dict[str, object]:
    """Validated sampling settings; missing and null keys are absent, `eos_token_id` is always a
    tuple, other keys are ignored."""
    fields = Fields(values, where)
    found: dict[str, object] = {}
    given = {key for key, value in fields.values.items() if value is not None}
    if "eos_token_id" in given:
        found["eos_token_id"] = fields.integers("eos_token_id", None, maximum=LARGEST_INTEGER)
    for key, limits in SAMPLING_NUMBERS.items():
        if key in given:
            found[key] = fields.number(key, **limits)
    for key, minimum in SAMPLING_INTEGERS.items():
        if key in given:
            found[key] = fields.integer(key, minimum=minimum)
    if FORCED in given:
        found[FORCED] = fields.integer(FORCED, minimum=0)
    return found
