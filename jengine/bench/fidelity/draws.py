"""Random configs of a family: its tiny config, with every key varied that its config reader
reads.

Out: settings as transformers' config class takes them, the same for the same seed.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from functools import cache

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from jengine.bench.fidelity.families import FAMILIES, own_settings, tiny_settings
from jengine.bench.fidelity.own_variations import NOTHING, OWN, Own
from jengine.bench.fidelity.variations import (
    CHOICES,
    FLAGS,
    MARKS,
    VARIATIONS,
    Draw,
    Settings,
    Variation,
    one_of,
)
from jengine.errors import CheckpointError
from jengine.models.unread import read_keys

# Hypothesis begins with the simplest example, which is the same for every seed.
EXAMPLES = 3


def drawn(family: str, number: int) -> Settings:
    """The config with this number, as keyword arguments of transformers' config class."""
    return drawn_from(configs(family), number)


def drawn_from(strategy: st.SearchStrategy[Settings], number: int) -> Settings:
    """The config with this number among those of a strategy."""
    found: list[Settings] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES, phases=[Phase.generate], database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def keep(one: Settings) -> None:
        found.append(one)

    keep()
    return found[-1]


def configs(family: str) -> st.SearchStrategy[Settings]:
    """Strategy over all configs of a family."""
    return _configs(family, _ours_read(family))


@cache
def _ours_read(family: str) -> frozenset[str]:
    """The keys that the family's config reader accesses, under common names."""
    names = {key: key for key in varied_keys(family)} | own_settings(family)
    keys = [theirs for theirs in names.values() if theirs]
    tiny = {**tiny_settings(family), "architectures": [FAMILIES[family]]}
    read = read_keys(tiny, keys)
    # Some keys are read only with a flag that a tiny config has not.
    flags = {key: True for key in read if CHOICES.get(key) == FLAGS}
    for more in (flags, {"use_sliding_window": True}):
        with suppress(CheckpointError):
            read |= read_keys({**tiny, **more}, keys)
    return frozenset(ours for ours, theirs in names.items() if theirs in read)


def varied_keys(family: str) -> set[str]:
    """All config keys that a family's draws may vary."""
    own = OWN.get(family, NOTHING)
    decided = (key for one in (*VARIATIONS, *own.variations) for key in one.keys)
    return {*CHOICES, *own.choices, *decided} - set(own.without)


@st.composite
def _configs(draw: Draw, family: str, read: Collection[str]) -> Settings:
    own = OWN.get(family, NOTHING)
    made: Settings = {**full_settings(family), **own.marks}
    choices = {**CHOICES, **own.choices}
    for key in sorted(read & choices.keys()):
        made[key] = one_of(draw, choices[key])
    for variation in variations_of(own):
        if variation.keys[0] in read:
            made |= variation.draw(draw, made, read)
    return tiny_settings(family, **{key: made[key] for key in made.keys() - MARKS})


def variations_of(own: Own) -> list[Variation]:
    """A family's variations in dependency order."""
    replaced = {one.keys[0]: one for one in own.variations}
    shared = [replaced.pop(one.keys[0], one) for one in VARIATIONS]
    return [*shared, *replaced.values()]


def full_settings(family: str) -> Settings:
    """The family's tiny config under common key names."""
    names = own_settings(family)
    back = {theirs: ours for ours, theirs in names.items() if theirs}
    return {back.get(key, key): value for key, value in tiny_settings(family).items()}
