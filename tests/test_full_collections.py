"""Imports of jengine put off full garbage collections, and nothing else does."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jengine.full_collections import NEVER, put_off

COUNTS = """
import gc
full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 else None)
before = gc.get_threshold()
from jengine import LLM
assert not full and gc.get_threshold() == before
"""


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_imports_leave_out_full_collections() -> None:
    subprocess.run([sys.executable, "-c", COUNTS], check=True)


def test_thresholds_return_but_for_those_that_were_set_meanwhile() -> None:
    gc.set_threshold(700, 10, 9)
    with put_off(), put_off():
        assert gc.get_threshold() == (700, 10, NEVER)
    assert gc.get_threshold() == (700, 10, 9)
    with put_off():
        gc.set_threshold(500)
    assert gc.get_threshold()[0] == 500
