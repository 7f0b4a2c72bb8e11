"""The bench of first uses finds the gap that a use has made, and only that one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from jengine.bench.first_uses import PROMPTS, measure, shown
from jengine.bench.marathon.load import FEATURES

HELD = 0.3


class Engine:
    """Answers at once, but the first use of log-probabilities holds all streams."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used = False

    def ask(self, prompt: list[int], most: int, sampling: dict[str, Any]) -> Iterator[int]:
        if "logprobs" in sampling and not self._used:
            self._used = True
            with self._lock:
                time.sleep(HELD)
        for token in range(most):
            with self._lock:
                time.sleep(0.001)
            yield token


def test_the_gap_of_a_first_use_is_that_uses() -> None:
    found = measure(Engine().ask, streams=2)
    assert len(found["uses"]) == len(FEATURES) * len(PROMPTS)
    [first, *_] = [one for one in found["uses"] if one["feature"] == "logprobs"]
    assert first["first_gap_s"] >= HELD - 0.01 and found["longest_gap_s"] >= HELD - 0.01
    assert first["first_s"] >= HELD > found["median_gap_s"]
    assert "logprobs" in shown("here", found)
