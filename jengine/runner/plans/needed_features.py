"""The features that a plan's rows need. Pure numpy."""

from __future__ import annotations

import numpy as np

from jengine.plan import NO_DRAFTER, Plan
from jengine.request import WireRequest
from jengine.runner.plans.rows import Rows, wanted_columns
from jengine.runner.variants.buckets import StepShapes
from jengine.runner.variants.features import Features
from jengine.runner.variants.tap_sets import TapSets
from jengine.sampling.features import SamplingFeatures
from jengine.sampling.processor_sets import ProcessorSets


def needed(
    plan: Plan,
    rows: Rows,
    vocab_size: int,
    taps: TapSets | None = None,
    processors: ProcessorSets | None = None,
) -> Features:
    """Features of the plan's rows, by their settings in `rows`; `taps` and `processors` are the
    registries in use."""
    owners, settings = plan.entries.rows, rows.settings
    sampling, prefill = owners[plan.entries.wants_tokens], owners[plan.num_decodes :]
    return Features(
        SamplingFeatures(
            random=bool((settings["temperature"][sampling] > 0).any()),
            adjust=bool(settings["adjusted"][sampling].any()),
            logprobs=most_wanted(settings["logprobs"][sampling], vocab_size),
            own_ids=bool(settings["own_ids"][sampling].any()),
            processors=()
            if processors is None
            else processors.of(settings["processors"][sampling]),
        ),
        prompt_logprobs=most_wanted(settings["prompt_logprobs"][prefill], vocab_size),
        taps=() if taps is None else taps.of(settings["taps"][owners]),
        adapters=bool(settings["adapter"][owners].any()),
        drafts=runs_drafts(plan, rows.shapes),
    )


def needed_by(
    wire: WireRequest, vocab_size: int, taps: TapSets, processors: ProcessorSets
) -> Features:
    """Features of the steps that a request will run in."""
    sampling = wire.sampling

    def wanted(count: int | None) -> int | None:
        return most_wanted(np.array([wanted_columns(count)]), vocab_size)

    return Features(
        SamplingFeatures(
            random=sampling.temperature > 0,
            adjust=sampling.has_sampler_state,
            logprobs=wanted(0 if sampling.logprob_ids else sampling.logprobs),
            own_ids=bool(sampling.logprob_ids),
            processors=processors.of(np.array([sampling.processors])),
        ),
        prompt_logprobs=wanted(sampling.prompt_logprobs),
        taps=taps.of(np.array([wire.taps])),
        adapters=bool(wire.adapter),
        embeds=bool(wire.media) or wire.embeds is not None,
    )


def runs_drafts(plan: Plan, shapes: StepShapes) -> bool:
    """Whether a step uses a program with draft support. Steps with prefill tokens always do, to
    avoid compiling two programs per size."""
    if not shapes.most_drafts:
        return False
    next_drafts = shapes.makes_drafts and plan.next_drafts != NO_DRAFTER
    return next_drafts or bool(plan.drafts) or plan.num_decodes < len(plan.entries)


def most_wanted(columns: np.ndarray, vocab_size: int) -> int | None:
    """Most log-probabilities that a row asks for, from `wanted_columns` counts; None if none
    asks."""
    if not columns.any():
        return None
    return vocab_size if (columns < 0).any() else int(columns.max()) - 1
