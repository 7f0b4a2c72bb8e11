"""Architectures for which the generic reader is proven equal to transformers.

`proven.json` is written by `python -m jengine.bench.coverage`: per class, the keys that config.json
must have because the reader's default differs from the class's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jengine.errors import CheckpointError
from jengine.models.importing.key_aliases import ALIASES

FILE = Path(__file__).with_name("proven.json")
# Alternative keys of RoPE settings: one of them counts as all.
ROPE = ("rope_parameters", "rope_theta", "rope_scaling")
ELSEWHERE = {"architectures", "bos_token_id", "eos_token_id", "dtype", "initializer_range"}


def is_proven(architecture: object) -> bool:
    """Whether the generic reader reads this architecture by default."""
    return architecture in _table()


def expect_keys(hf: Mapping[str, object], architecture: str) -> None:
    """Raise CheckpointError if config.json lacks a key whose default the generic reader does not
    know."""
    given = {name for key in hf for name in (key, ALIASES.get(key, key))}
    if given & set(ROPE):
        given |= set(ROPE)
    missing = [key for key in _table()[architecture] if not {key, ALIASES.get(key, key)} & given]
    if missing:
        raise CheckpointError(
            f"config.json: given no {', '.join(missing)}, which the generic reader needs of a"
            f" {architecture}: it does not know this class's defaults. Add them to config.json, or"
            " give them as hf_overrides."
        )


def _table() -> dict[str, list[str]]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
