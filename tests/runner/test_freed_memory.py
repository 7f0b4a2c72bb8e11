"""What the allocator keeps goes back to the system."""

from __future__ import annotations

import sys

import numpy as np
import psutil
import pytest

from jengine.runner.memory.freed_memory import give_back_freed_memory


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_freed_memory_goes_back() -> None:
    # Small enough to come from the heap, with one that stays on top of them.
    arrays = [np.ones(8_000) for _ in range(2_000)]
    stays = np.ones(8_000)
    del arrays
    before = psutil.Process().memory_info().rss
    given = give_back_freed_memory()
    after = psutil.Process().memory_info().rss
    assert stays.sum() == 8_000
    if not given:
        pytest.skip("this C library has nothing of the kind")
    assert before - after > 50e6
