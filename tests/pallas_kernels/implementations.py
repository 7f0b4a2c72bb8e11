"""The implementations of paged operations that can run here, for `pytest.mark.parametrize`.

Triton's kernels run in its interpreter; on a GPU with TRITON_INTERPRET=0 and JAX_PLATFORMS=cuda.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util

import jax
import numpy as np
import pytest

from pallas_kernels.choice import cpu_problem

if importlib.util.find_spec("triton") is None:
    reason = "triton is not installed"
else:
    from pallas_kernels.launch import interpreting

    reason = ""
    release = tuple(map(int, importlib.metadata.version("triton").split(".")[:2]))
    if not interpreting() and jax.default_backend() == "cpu":
        reason = "triton was imported without TRITON_INTERPRET=1"
    elif interpreting() and release < (3, 7) and np.lib.NumpyVersion(np.__version__) >= "2.5.0":
        reason = "the interpreter of triton before 3.7 does not run on numpy 2.5"

TRITON = pytest.param("triton", marks=pytest.mark.skipif(bool(reason), reason=reason or "runs"))
missing = cpu_problem()
CPU = pytest.param("cpu", marks=pytest.mark.skipif(bool(missing), reason=missing or "runs"))
# For what the interpreter takes seconds to show, and shows by another test as well.
SLOW_TRITON = pytest.param("triton", marks=[*TRITON.marks, pytest.mark.slow])
IMPLEMENTATIONS = ["xla", TRITON, CPU]
XLA_AND_TRITON = ["xla", TRITON]
