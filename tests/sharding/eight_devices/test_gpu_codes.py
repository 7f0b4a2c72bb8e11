"""Codes of GPUs on several devices: each multiplies with its shard, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.moe import Picked
from jengine.models.parameter import named_parameters
from jengine.models.quantized import with_quantization
from jengine.models.registry import model_config
from jengine.models.stages import stage_layout
from jengine.quantization.gpu_codes import GpuCodes
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import Around, Stored, WeightShape
from jengine.quantization.whole_experts import WholeExperts
from jengine.weight_formats import WeightFormat
from jengine.weights.dummy import dummy_model
from jengine.weights.prepared import PreparedForm, weighted
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import engine_mesh, one_device_mesh
from sharding.placement import Placement
from tests.models.tiny_models import FAMILIES, tiny_settings
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


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_whole_experts_are_saved_as_from_one_device(name: str) -> None:
    """Weights rounded at load, whose codes each device lays out for its kernels."""
    sizes = {"hidden_size": 128, "intermediate_size": 128, "dtype": "bfloat16"}
    settings = {**tiny_settings("mixtral"), "architectures": [FAMILIES["mixtral"]], **sizes}
    config = with_quantization(model_config(settings), name)
    model = dummy_model(config)
    alone = Placement(one_device_mesh()), None
    spread = replace(two_devices(), whole_experts=True), "triton"
    found = []
    for placement, backend in (alone, spread):
        places = StagePlaces(placement, stage_layout(config, 1))
        form = PreparedForm(model, places, backend)
        values = [
            (path, places(path, leaf.axes, leaf[...])) for path, leaf in named_parameters(model)
        ]
        found.append(form.restore(form.prepare(values), rounded=True))
    scheme = weighted(form.module)["layers.0.mlp.gate_up"].scheme
    assert isinstance(scheme, WholeExperts) and isinstance(scheme.own, GpuCodes)
    expected, saved = found
    assert saved.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(saved[path], array, err_msg=path)
