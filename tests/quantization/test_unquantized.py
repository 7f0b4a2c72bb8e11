"""Plain weights multiply as numpy does, in every layout, and the step takes the very arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.models.linear import Factory, Linear
from jengine.models.stages import stage_layout
from jengine.quantization.scheme import WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.dummy import dummy_model
from jengine.weights.live import named_arrays
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement

LAYER = LayerConfig(AttentionConfig(2, 1, 8), MlpConfig(8))
CONFIG = ModelConfig("LlamaForCausalLM", 11, 6, max_position=16, layers=(LAYER,))


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.mark.parametrize(
    ("shape", "equation"),
    [
        (WeightShape((6,), (5,), (None,) * 2), "ti,io->to"),
        (WeightShape((6,), (2, 3, 4), (None,) * 4), "ti,iabc->tabc"),
        (WeightShape((2, 3), (5,), (None,) * 3), "tab,abo->to"),
        (WeightShape((6,), (5,), (None,) * 2, outputs_first=True), "ti,oi->to"),
    ],
)
def test_a_matmul_equals_numpy(shape: WeightShape, equation: str) -> None:
    x, weight = random(7, 6), random(*shape.shape, seed=1)
    found = UNQUANTIZED.multiply(shape, x, {"weight": weight})
    given = np.asarray(x).reshape(7, *shape.inputs)
    np.testing.assert_allclose(found, np.einsum(equation, given, weight), rtol=1e-5, atol=1e-5)


def test_each_group_of_rows_meets_its_own_matrix() -> None:
    shape = WeightShape((6,), (4, 2), (None,) * 4, groups=3)
    x, weight = random(5, 6), random(*shape.shape, seed=1)
    found = UNQUANTIZED.multiply_groups(shape, x, {"weight": weight}, jnp.asarray([2, 0, 3]))
    expected = [
        np.einsum("i,iab->ab", x[row], weight[group]) for row, group in enumerate([0, 0, 2, 2, 2])
    ]
    np.testing.assert_allclose(found, np.stack(expected), rtol=1e-5, atol=1e-5)


def test_norm_bias_and_residual_are_composed() -> None:
    linear = Linear(Factory(CONFIG, jnp.float32, nnx.Rngs(0)), (6,), (6,), (None, None), bias=True)
    linear.bias[...] = random(6, seed=2)
    x = random(7, 6)
    found = linear(x, norm=lambda x: x * 2, residual=x)
    plain = np.asarray(x), np.asarray(linear.weight[...]), np.asarray(linear.bias[...])
    expected = plain[0] + ((plain[0] * 2) @ plain[1] + plain[2])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_step_takes_the_declared_arrays_themselves() -> None:
    model = dummy_model(CONFIG)
    order = LeafOrder(model, StagePlaces(Placement(one_device_mesh()), stage_layout(CONFIG, 1)))
    declared: dict[str, Any] = named_arrays(model)
    leaves = order.leaves(declared.items())
    assert all(leaf is declared[name] for name, leaf in zip(order.names, leaves, strict=True))
    restored = order.values(leaves)
    assert all(restored[name] is array for name, array in declared.items())
