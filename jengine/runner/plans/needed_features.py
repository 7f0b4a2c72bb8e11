"""The features that a plan's rows need. Pure numpy."""

from __future__ import annotations

import numpy as np

from jengine.runner.plans.plan_arrays import PlanArrays
from jengine.runner.plans.rows import Rows
from jengine.runner.variants.features import Features
from jengine.runner.variants.tap_sets import TapSet
from jengine.sampling.features import SamplingFeatures


def needed(
    plan: PlanArrays, rows: Rows, vocab_size: int, taps: tuple[TapSet, ...] = ()
) -> Features:
    """What the rows of this plan use; `taps` are the sets they name."""
    sampling, prefill = plan.rows[plan.samples], plan.rows[plan.num_decodes :]
    return Features(
        SamplingFeatures(
            random=bool((rows.settings["temperature"][sampling] > 0).any()),
            adjust=bool(rows.settings["adjusted"][sampling].any()),
            logprobs=most_wanted(rows.settings["logprobs"][sampling], vocab_size),
        ),
        prompt_logprobs=most_wanted(rows.settings["prompt_logprobs"][prefill], vocab_size),
        taps=taps,
    )


def most_wanted(columns: np.ndarray, vocab_size: int) -> int | None:
    """The largest k that a row asks for, None where no row asks."""
    if not columns.any():
        return None
    return vocab_size if (columns < 0).any() else int(columns.max()) - 1
