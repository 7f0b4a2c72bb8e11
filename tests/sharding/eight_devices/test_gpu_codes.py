"""Codes of GPUs on several devices: each multiplies with its shard, in Triton's interpreter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.moe import Picked
from jengine.quantization.gpu_codes import GpuCodes
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, Stored, WeightShape
from jengine.weight_formats import WeightFormat
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from tests.pallas_kernels.implementations import TRITON
from tests.quantization.test_gpu_codes import BLOCKS, random_tensors

SHAPES = {
    "inputs": WeightShape((256,), (24,), ("mlp", "embed")),
    "heads": WeightShape((2, 2, 64), (24,), ("kv_heads", "queries_of_kv_head", None, "embed")),
    "outputs": WeightShape((256,), (2, 24), ("embed", None, "mlp"), gated=True, inner=True),
}


def two_devices() -> Placement:
    return Placement(engine_mesh(np.asarray(jax.devices()[:2]).reshape(1, 2), (2,)))


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("format", [WeightFormat("int4", 64, zeros=True), BLOCKS])
def test_parts_add_up(shape: str, format: WeightFormat, backend: str) -> None:
    placement, weight = two_devices(), SHAPES[shape]
    plain = QuantizedWeights(format, "bfloat16")
    scheme = GpuCodes(plain, placement, exact=True, float8=format == BLOCKS)
    assert scheme.fits(weight)
    tensors = random_tensors(plain, weight)
    specs = scheme.prepared(weight, jnp.bfloat16)
    prepared = {
        name: jax.device_put(array, placement.sharding(specs[name].axes, specs[name].shape))
        for name, array in scheme.prepare(weight, tensors).items()
    }
    parts = {shard.data.shape for shard in prepared["weight"].addressable_shards}
    assert {np.prod(part) * 2 for part in parts} == {prepared["weight"].size}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 256)), jnp.float32)
    around = Around(activation="silu") if weight.gated else Around()
    found = jax.jit(lambda x, t: scheme.apply(weight, x, t, around))(x, prepared)
    expected = plain.apply(weight, x, tensors, around)
    tolerance = 1e-2 if weight.inner or format == BLOCKS else 1e-5
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(np.asarray(found, np.float32), expected, atol=tolerance * scale)


@pytest.mark.parametrize("backend", [TRITON])
def test_experts_are_sharded_inside(backend: str) -> None:
    placement, plain = two_devices(), QuantizedWeights(WeightFormat("fp4", 32), "bfloat16")
    scheme = GpuCodes(plain, placement, exact=True)
    shapes = (
        WeightShape((64,), (128, 2), ("experts", "embed", "mlp", None), groups=2),
        WeightShape((128,), (64,), ("experts", "mlp", "embed"), groups=2),
    )
    tensors = [random_tensors(plain, one) for one in shapes]
    x = jnp.asarray(np.random.default_rng(7).normal(size=(3, 64)), jnp.float32)
    picked = Picked(jnp.ones((3, 1)), jnp.asarray([[1], [0], [1]], jnp.int32))
    found, expected = (
        jax.jit(
            lambda x, one=one: one.mix_experts(
                *(Stored(w, one.prepare(w, t)) for w, t in zip(shapes, tensors, strict=True)),
                x, picked, "silu", None,
            )
        )(x)
        for one in (scheme, plain)
    )  # fmt: skip
    assert all(scheme.fits(one) for one in shapes)
    assert np.linalg.norm(found - expected) < 0.01 * np.linalg.norm(expected)


def test_parts_that_are_no_whole_groups_do_not_fit() -> None:
    scheme = GpuCodes(QuantizedWeights(WeightFormat("int4", 128), "bfloat16"), two_devices())
    assert scheme.fits(SHAPES["inputs"])
    assert not scheme.fits(WeightShape((384,), (24,), ("mlp", "embed")))
    assert scheme.fits(WeightShape((384,), (24,), ("embed", "mlp")))
