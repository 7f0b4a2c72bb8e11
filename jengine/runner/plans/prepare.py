"""What is kept of a plan's rows for its step and for the reading of its results."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from jengine.runner.plans.needed_features import needed
from jengine.runner.plans.plan_arrays import PlanArrays
from jengine.runner.plans.rows import Rows
from jengine.runner.variants.features import Features
from jengine.runner.variants.tap_sets import TapSets


@dataclass(frozen=True)
class PlanNeeds:
    """One item per entry. Kept beside a plan, since its rows may serve other requests when its
    results are read."""

    features: Features
    prompt_lengths: np.ndarray
    logprobs: np.ndarray  # see `rows.SETTINGS`
    prompt_logprobs: np.ndarray
    taps: np.ndarray  # the tap set


def needs_of(plan: PlanArrays, rows: Rows, vocab_size: int, taps: TapSets) -> PlanNeeds:
    """The needs of a plan whose new rows have been taken in."""
    of_entries = rows.settings["taps"][plan.rows]
    return PlanNeeds(
        needed(plan, rows, vocab_size, taps.of(of_entries)),
        rows.settings["prompt_length"][plan.rows],
        rows.settings["logprobs"][plan.rows],
        rows.settings["prompt_logprobs"][plan.rows],
        of_entries,
    )
