"""Replicas and stages run in their largest program until the others are there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from jengine import SamplingParams
from jengine.runner.programs import background
from jengine.runner.programs.warm_up import compile_in_turn
from tests.api.engines import answers, random_prompts, tiny_engine

PROMPTS = random_prompts(5, 70, 30, 9, 44, seed=2)
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "split",
    [
        {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
        {"data_parallel_size": 2},
    ],
)
def test_same_tokens_before_and_after(
    folder: Path, split: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Event()

    def held_back(*arguments: Any) -> Any:
        begin.wait()
        return compile_in_turn(*arguments)

    with tiny_engine(folder, "greedy") as llm:
        expected = answers(llm.generate(PROMPTS, GREEDY))
    monkeypatch.setattr(background, "compile_in_turn", held_back)
    early = {"wait_for": "largest", "decode_rows": [2, 8]}
    with tiny_engine(
        folder, "greedy", enforce_eager=False, compilation_config=early, **split
    ) as llm:
        try:
            assert answers(llm.generate(PROMPTS, GREEDY)) == expected
            largest = llm.engine.loaded.ladders.largest
            first, *heads = (entry.bucket for entry in llm.ledger.entries.values())
            # A pipeline's step is one program.
            chained = llm.engine.loaded.shapes.chained
            assert first == largest and len(heads) == int(chained)
            assert llm.stats().programs_to_come >= 2
        finally:
            begin.set()
        assert llm.wait_until_warm()
        assert answers(llm.generate(PROMPTS, GREEDY)) == expected
        assert all(entry.hits for entry in llm.ledger.entries.values())
        assert llm.stats().compiles_after_warm_up == 0
