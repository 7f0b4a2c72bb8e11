"""Grammars made to do harm: each ends, and free text goes on. The bench says how fast."""

from __future__ import annotations

import pytest

import jengine
from jengine.bench import hostile_grammars
from tests.api.engines import SMALL_DEMO


@pytest.mark.slow
def test_each_ends_and_free_text_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hostile_grammars, "QUIET", 0.3)
    with jengine.LLM("demo", **SMALL_DEMO) as llm:
        found = hostile_grammars.measure(llm)
    assert set(found["grammars"]) == set(hostile_grammars.HOSTILE)
    assert all(one["free_tokens_per_s"] > 0 for one in found["grammars"].values())
    refused = [name for name, one in found["grammars"].items() if "refused" in one["ended"]]
    assert {"schema of 5 MiB", "schema of 100,000 brackets"} <= set(refused)
