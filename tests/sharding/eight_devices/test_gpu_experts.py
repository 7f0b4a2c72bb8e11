"""Weights of GPUs on several devices: parts of sums, and experts in Triton's interpreter."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.quantization.gpu import GpuWeights
from jengine.quantization.scheme import Around, WeightShape
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


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("axes", "in_parts"), [(("mlp", "embed"), True), (("embed", "mlp"), False)]
)
def test_parts_of_sums_are_rounded_once(
    axes: tuple[str, str], *, in_parts: bool, exact: bool
) -> None:
    """To bfloat16 before devices add them up; the residual and the result stay float32."""
    devices = np.asarray(jax.devices()[:4]).reshape(1, 4)
    placement = Placement(engine_mesh(devices, (4,)))
    scheme, weight = GpuWeights(placement, exact), WeightShape((64,), (32,), axes)
    rng = np.random.default_rng(0)
    drawn = rng.normal(size=weight.shape).astype(jnp.bfloat16)
    tensors = {"weight": jax.device_put(drawn, placement.sharding(weight.axes, weight.shape))}
    x, residual = (jnp.asarray(rng.normal(size=(3, size)), jnp.float32) for size in (64, 32))
    around = Around(residual=residual)

    def run(x: jax.Array, tensors: dict[str, jax.Array]) -> jax.Array:
        return scheme.apply(weight, x, tensors, around)

    rounded = in_parts and not exact
    (dot,) = re.findall(r"(\w+)\[3,32\] = dot_general", str(jax.make_jaxpr(run)(x, tensors)))
    assert dot == ("bf16" if rounded else "f32")
    found = jax.jit(run)(x, tensors)
    expected = UNQUANTIZED.apply(weight, x, tensors, around)
    assert found.dtype == jnp.float32
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(found, expected, atol=(2**-7 if rounded else 1e-6) * scale)
