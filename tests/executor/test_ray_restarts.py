"""When ranks on Ray that have ended are started again."""

from __future__ import annotations

import time

import pytest

from jengine.errors import ConfigError, EngineDead


def test_a_rank_is_started_a_few_times_and_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = pytest.importorskip("jengine.executor.ray.ranks", reason="Ray is not installed")
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    again = ranks.Restarts(2)
    for delay in ranks.DELAYS:
        assert f"again in {delay:g} s" in str(again.noted(1, EngineDead("it was lost.")))
        assert again.running == [0] and again.taken() == []
        now[0] += delay
        assert again.taken() == [1] and again.running == [0, 1]
    assert "given up" in str(again.noted(1, EngineDead("it was lost.")))
    assert again.running == [0] and not again.due
    now[0] += ranks.SETTLED  # long ago is no sign of what comes
    assert "again in 1 s" in str(again.noted(0, EngineDead("it was lost.")))


def test_a_rank_that_cannot_be_built_is_not_tried_again() -> None:
    ranks = pytest.importorskip("jengine.executor.ray.ranks", reason="Ray is not installed")
    again = ranks.Restarts(1)
    assert isinstance(again.noted(0, ConfigError("no such model.")), ConfigError)
    assert not again.running and not again.due
