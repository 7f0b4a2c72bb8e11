"""Drafters of the demo model learn, and their folders are drafted with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.demo_model.drafters import KINDS, drafter
from examples.demo_model.train_drafter import METHODS, PLAN, first_values, stored, train, write
from jengine import LLM, SamplingParams
from jengine.demo import model_path
from jengine.weights.folder import read_model_config
from tests.api.engines import SMALL_DEMO, answers, rebuilt

# For four requests of a token and three drafts.
SIXTEEN_ROWS = {"compilation_config": {**SMALL_DEMO["compilation_config"], "decode_rows": [16]}}
PROMPTS = ["Once upon a time", "What is 23 + 45?"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_is_trained_and_drafted_with(kind: str, tmp_path: Path) -> None:
    plan = replace(PLAN, steps=12, tokens_per_step=256, warmup=2, lengths=((0.0, 64),))
    untrained = sum(train(kind, replace(plan, steps=1))[2])
    one, values, right = train(kind, plan)
    assert sum(right) > untrained + 0.05, "of its drafts more are right than of random ones"
    write(one, values, tmp_path)
    config = {"method": METHODS[kind], "model": str(tmp_path), "num_speculative_tokens": 3}
    sampling = SamplingParams(temperature=0, max_tokens=24)
    with LLM("demo", speculative_config=config, **{**SMALL_DEMO, **SIXTEEN_ROWS}) as llm:
        found = answers(llm.generate(PROMPTS, sampling))
        assert llm.stats().drafts.drafted > 0
        with rebuilt(llm, speculative=None) as plain:
            assert answers(plain.generate(PROMPTS, sampling)) == found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_files_hold_every_parameter(kind: str) -> None:
    """By the names and in the shapes in which they are read again."""
    one = drafter(kind, read_model_config(model_path()))
    shapes = {piece.name: piece.shape for found in one.pieces.values() for piece in found}
    written = {name: array.shape for name, array in stored(one, first_values(one, 0))}
    assert written == shapes
    assert all(np.prod(shape) > 0 for shape in shapes.values())
