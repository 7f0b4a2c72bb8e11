"""Layers on the host arrive one ahead of the layer that runs, and only then."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jengine.runner.step.weight_offload import OffloadedLayers
from jengine.weights.layers_to_offload import GIB, layers_to_offload

WIDTH = 4


class Layer(nnx.Module):
    """x -> tanh(x @ weight), with something that is no parameter."""

    def __init__(self, number: int) -> None:
        draw = np.random.default_rng(number).normal(size=(WIDTH, WIDTH))
        self.weight = nnx.Param(jnp.asarray(draw, jnp.float32))
        self.added = lambda x: x + number

    def __call__(self, x: jax.Array) -> jax.Array:
        return jnp.tanh(self.added(x) @ self.weight[...])


def run(on_host: set[int], weights: list[Any], x: jax.Array, calls: int = 1) -> jax.Array:
    layers = [Layer(number) for number in range(len(weights))]
    for layer, weight in zip(layers, weights, strict=True):
        layer.weight[...] = weight
    arrivals = OffloadedLayers(layers, on_host) if on_host else None
    for _ in range(calls):
        for index, own in enumerate(layers):
            layer, x = (own, x) if arrivals is None else arrivals.arrived(index, own, x)
            x = layer(x)
    return x


@pytest.mark.parametrize("on_host", [{0, 1, 2, 3}, {1, 3}, {3}, {0}])
def test_layers_compute_what_they_would_compute_on_the_devices(on_host: set[int]) -> None:
    weights = [Layer(number).weight[...] for number in range(4)]
    x = jnp.ones((2, WIDTH))
    for calls in (1, 2):
        found = jax.jit(run, static_argnums=(0, 3))(frozenset(on_host), weights, x, calls)
        np.testing.assert_array_equal(found, jax.jit(run, static_argnums=(0, 3))(
            frozenset(), weights, x, calls))  # fmt: skip


def test_a_copy_begins_when_the_layer_of_the_one_before_is_about_to_run() -> None:
    weights = [Layer(number).weight[...] for number in range(5)]
    traced = jax.make_jaxpr(run, static_argnums=0)(frozenset({1, 3, 4}), weights, jnp.ones((2, 4)))
    order = [
        equation.primitive.name for equation in traced.jaxpr.eqns
        if equation.primitive.name in ("optimization_barrier", "device_put", "dot_general")
    ]  # fmt: skip
    begin, layer = ["optimization_barrier", "device_put"], ["dot_general"]
    assert order == [*begin, *layer, *begin, *layer, *layer, *begin, *layer, *layer]
    barriers = [one for one in traced.jaxpr.eqns if one.primitive.name == "optimization_barrier"]
    puts = [one for one in traced.jaxpr.eqns if one.primitive.name == "device_put"]
    for arrived, barrier in zip(puts, barriers[1:], strict=False):
        assert arrived.outvars[0] in barrier.invars, "the copy before has ended by then"


def test_few_layers_are_offloaded_and_spread_evenly() -> None:
    sizes = dict.fromkeys(range(8), GIB // 2)
    assert layers_to_offload(sizes, 0) == []
    assert layers_to_offload(sizes, 0.1) == [7]
    assert layers_to_offload(sizes, 1) == [3, 7]
    assert layers_to_offload(sizes, 1.1) == [1, 4, 7]
    assert layers_to_offload(sizes, 4) == layers_to_offload(sizes, 99) == list(range(8))
    assert layers_to_offload({0: GIB, 1: GIB, 2: 9 * GIB}, 5) == [2]
    assert layers_to_offload({}, 1) == []
