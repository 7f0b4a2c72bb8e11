"""Random configs of the classes that the generic reader reads, of which no family says what it
reads: every key of the class's defaults varies that variations know, by the name most families
give it.

In: the config.json of a class's defaults. Out: keyword arguments of its config class.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from hypothesis import strategies as st

from jengine.bench.fidelity.draws import drawn_from
from jengine.bench.fidelity.own_variations import TWO_ROPES
from jengine.bench.fidelity.tiny import FLIPPED, VARIED, tiny
from jengine.bench.fidelity.variations import (
    CHOICES,
    EXPERT_COUNTS,
    FLAGS,
    HEADS_DIVIDE,
    MARKS,
    PATTERN,
    TURNS_PART,
    VARIATIONS,
    Draw,
    Settings,
    Variation,
    one_of,
)
from jengine.models.importing import proven
from jengine.models.importing.key_aliases import ALIASES
from jengine.models.importing.meanings import MEANINGS, PLAIN_MEANING
from jengine.models.reading.hf_rope import PARTIAL

GENERIC: tuple[str, ...] = tuple(json.loads(proven.FILE.read_text(encoding="utf-8")))


def drawn_generic(architecture: str, defaults: Mapping[str, Any], number: int) -> Settings:
    """The config with this number."""
    return drawn_from(_configs(architecture, defaults), number)


@st.composite
def _configs(draw: Draw, architecture: str, defaults: Mapping[str, Any]) -> Settings:
    small = tiny(architecture, defaults)
    theirs = _names(architecture, defaults)
    made: Settings = {ours: {**defaults, **small}[name] for ours, name in theirs.items()}
    read = {ours for ours, value in made.items() if value is not None}
    made |= _marks(made)
    for key, values in _choices(defaults, read).items():
        made[key] = one_of(draw, values)
    for variation in _variations(made, read):
        made |= variation.draw(draw, made, read)
    found = {theirs[key]: made[key] for key in made.keys() & theirs.keys() - MARKS}
    changed = {key: value for key, value in found.items() if value != defaults[key]}
    return {**small, **changed}


def _names(architecture: str, defaults: Mapping[str, Any]) -> dict[str, str]:
    """Usual names of the class's keys, and its own."""
    usual = {**ALIASES, **MEANINGS.get(architecture, PLAIN_MEANING).keys}
    return {key if usual.get(key, key) in defaults else usual[key]: key for key in defaults}


def _marks(settings: Settings) -> Settings:
    """Return the facts about these settings that variations read."""
    rope = settings.get("rope_parameters") or {}
    return {HEADS_DIVIDE: True, PATTERN: "layer_types" in settings, TURNS_PART: PARTIAL in rope}


def _choices(defaults: Mapping[str, Any], read: Collection[str]) -> dict[str, Any]:
    flags = {key: FLAGS for key in FLIPPED if type(defaults.get(key)) is bool}
    factors = {key: (defaults[key], value) for key, value in VARIED.items() if key in defaults}
    return {**factors, **{key: CHOICES[key] for key in sorted(read & CHOICES.keys())}, **flags}


def _variations(settings: Settings, read: Collection[str]) -> list[Variation]:
    by_kind = "full_attention" in (settings.get("rope_parameters") or {})
    known = [TWO_ROPES if by_kind and one.keys == TWO_ROPES.keys else one for one in VARIATIONS]
    counts = settings.keys() & set(EXPERT_COUNTS)
    return [
        one for one in known
        if one.keys[0] in read and (one.keys[0] != "num_experts_per_tok" or counts)
    ]  # fmt: skip
