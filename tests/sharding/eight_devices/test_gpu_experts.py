"""Experts of GPUs, in Triton's interpreter: each device's part of every expert adds up to XLA's."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jengine.quantization.gpu import GpuWeights
from jengine.quantization.unquantized import UNQUANTIZED
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from tests.pallas_kernels.implementations import TRITON
from tests.quantization.experts import CASES, Case, layer


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kv_heads", [2, 4])
@pytest.mark.parametrize("case", CASES)
def test_parts_add_up(case: Case, kv_heads: int, backend: str) -> None:
    """On four devices, and on two with a copy of each KV head."""
    devices = np.asarray(jax.devices()[:4]).reshape(1, 4)
    split = GpuWeights(Placement(engine_mesh(devices, (kv_heads,))))
    found, expected = (np.asarray(layer(scheme, case)) for scheme in (split, UNQUANTIZED))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=case.tolerance * scale)
