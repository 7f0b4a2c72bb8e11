"""The implementations of paged operations that can run here, for `pytest.mark.parametrize`."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("triton") is None:
    reason = "triton is not installed"
else:
    from pallas_kernels.launch import interpreting

    reason = "" if interpreting() else "triton was imported without TRITON_INTERPRET=1"

TRITON = pytest.param("triton", marks=pytest.mark.skipif(bool(reason), reason=reason or "runs"))
IMPLEMENTATIONS = ["xla", TRITON]
