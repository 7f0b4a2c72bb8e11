"""A plan gets the cheapest variant that can do all its rows need."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from jengine.config import CacheGroup, CacheSpec
from jengine.plan import (
    NO_DRAFTER,
    Drafts,
    Entries,
    Entry,
    NewRow,
    Plan,
    RowSampling,
    Wanted,
    packed_tokens,
)
from jengine.runner.plans.needed_features import needed, runs_drafts
from jengine.runner.plans.rows import Rows
from jengine.runner.variants.buckets import StepShapes
from jengine.runner.variants.features import Features, holds, variants
from jengine.runner.variants.parts import Part
from jengine.runner.variants.program_list import of_part
from jengine.sampling.features import SamplingFeatures

VOCAB = 50
SHAPES = StepShapes((CacheGroup(CacheSpec("full", 1, 8), (0,)),), 16, 32, 4, 64)


def needs(*sampling: dict[str, Any], samples: list[bool] | None = None, decodes: int = 0) -> Any:
    """What a plan with one new row for each of these settings needs."""
    count = len(sampling)
    settings = [RowSampling(**one) for one in sampling]
    new_rows = [
        NewRow(i, packed_tokens([1, 2]), 2, one, sampler_row=(i + 1) * one.has_sampler_state)
        for i, one in enumerate(settings)
    ]
    rows = Rows(SHAPES)
    flags = samples or [True] * count
    entries = [Entry(row, 0, 2, Wanted(flag)) for row, flag in enumerate(flags)]
    plan = Plan(0, Entries.of(entries), decodes, new_rows=new_rows)
    rows.apply(plan)
    return needed(plan, rows, VOCAB)


def features(prompt: int | None = None, **sampling: Any) -> Features:
    return Features(SamplingFeatures(**sampling), prompt)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, features()),
        ({"temperature": 0.5}, features(random=True)),
        ({"repetition_penalty": 1.1}, features(adjust=True)),
        ({"logit_bias": {3: 1.0}}, features(adjust=True)),
        ({"allowed_ids": [3]}, features(adjust=True)),
        ({"bad_words": [[3]]}, features(adjust=True)),
        ({"min_tokens": 2, "stop_ids": [4]}, features(adjust=True)),
        ({"min_tokens": 2}, features()),
        ({"logprobs": 0}, features(logprobs=0)),
        ({"logprobs": 7}, features(logprobs=7)),
        ({"logprobs": 2, "logprob_ids": [3, 4]}, features(adjust=True, logprobs=0, own_ids=True)),
        ({"logprobs": -1}, features(logprobs=VOCAB)),
        ({"prompt_logprobs": 2}, features(2)),
        ({"prompt_logprobs": -1}, features(VOCAB)),
    ],
)
def test_one_row(sampling: dict[str, Any], expected: Features) -> None:
    assert needs(sampling) == expected
    assert needs({}, sampling, {}) == expected


def test_rows_together_need_what_each_needs() -> None:
    assert needs({"temperature": 1.0, "logprobs": 2}, {"logprobs": 5}, {"prompt_logprobs": 1}) == (
        features(1, random=True, logprobs=5)
    )


def test_a_row_that_does_not_sample_needs_no_sampler() -> None:
    assert needs({"temperature": 1.0, "logprobs": 2}, {}, samples=[False, True]) == features()
    assert needs({"prompt_logprobs": 0}, samples=[False]) == features(0)


def test_a_decode_scores_no_prompt() -> None:
    assert needs({"prompt_logprobs": 3}, decodes=1) == features()


def test_each_variant_covers_those_before_it() -> None:
    known = variants(20, "raw_logprobs")
    assert list(known) == ["greedy", "sampled", "adjusted", "full", "scored"]
    for less, more in pairwise(known.values()):
        assert more.covers(less) and not less.covers(more)
        assert more.covers(more)
    assert [str(one) for one in known.values()] == [
        "greedy",
        "random",
        "random+adjust",
        "random+adjust+logprobs=20",
        "random+adjust+logprobs=20+prompt_logprobs=20",
    ]


def test_greedy_scores_have_a_sampler_that_draws_nothing_where_they_are_named() -> None:
    known = variants(20, "raw_logprobs", greedy_scored=True)
    own = known["greedy-scored"]
    assert str(own) == "logprobs=20+prompt_logprobs=20" and own.covers(known["greedy"])
    assert known["scored"].covers(own) and not own.covers(known["sampled"])


def test_with_drafts_common_variants_come_in_two_kinds() -> None:
    """Steps without drafts run the programs of an engine that has none."""
    known = variants(20, "raw_logprobs", drafts=True)
    assert list(known) == [
        "greedy", "greedy+drafts", "sampled", "sampled+drafts", "adjusted", "full", "scored",
    ]  # fmt: skip
    without = variants(20, "raw_logprobs")
    assert known["greedy"] == without["greedy"] and known["sampled"] == without["sampled"]
    assert all(known["scored"].covers(one) for one in known.values())
    assert not known["sampled"].covers(known["greedy+drafts"])


@pytest.mark.parametrize("part", [Part.SAMPLE, Part.LOGITS, Part.SCORE])
def test_a_head_without_adapters_has_the_programs_of_an_engine_without(part: Part) -> None:
    plain, own, adapted = (
        of_part(variants(20, "raw_logprobs", **given).values(), part)
        for given in ({}, {"adapters": True}, {"adapters": True, "adapts_head": False})
    )
    assert list(map(str, adapted)) == list(map(str, plain)) and len(own) == 2 * len(plain)
    for less in own:
        assert adapted[-1].covers(less)
    bare = variants(20, "raw_logprobs", adapters=True, adapts_head=False)
    assert len(of_part(bare.values(), Part.FORWARD)) == 2


@pytest.mark.parametrize(
    ("plan", "on_device", "runs"),
    [
        ({}, False, False),
        ({"drafts": [Drafts(0, 1, [3])]}, False, True),
        ({"num_decodes": 0}, False, True),  # prompts always do
        ({"next_drafts": 2}, True, True),
        ({"next_drafts": 0}, True, True),  # the model that drafts reads the step
        ({"next_drafts": NO_DRAFTER}, True, False),
    ],
)
def test_which_steps_need_a_program_with_drafts(
    plan: dict[str, Any], on_device: bool, runs: bool
) -> None:
    made = Plan(0, Entries.of([Entry(0, 0, 1)]), **{"num_decodes": 1, **plan})
    window = 0 if on_device else 4
    shapes = replace(SHAPES, most_drafts=2, draft_window=window, makes_drafts=on_device)
    assert runs_drafts(made, shapes) == runs
    assert not runs_drafts(made, SHAPES)


def test_enough_log_probabilities() -> None:
    assert holds(None, None) and holds(5, None) and holds(5, 5) and holds(0, 0)
    assert not holds(None, 0) and not holds(4, 5)


def test_a_program_in_words() -> None:
    known = variants(20, "raw_logprobs")
    assert known["full"].of(Part.SAMPLE).in_words == (
        "the sampler for drawn tokens, changed logits, log-probabilities"
    )
    assert known["greedy"].of(Part.SAMPLE).in_words == "the sampler"
    assert known["scored"].of(Part.SCORE).in_words == "log-probabilities of prompts"
    assert all(Features(part=part).in_words for part in Part)
