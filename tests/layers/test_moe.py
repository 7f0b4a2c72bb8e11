"""Grouped experts equal the plain sum over all experts, whichever experts are picked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import RoutingConfig
from jengine.layers.linear import project
from jengine.layers.mlp import gated
from jengine.layers.moe import grouped_project, matmul_by_tiles, mix_experts, route
from tests.marks import slow

HIDDEN, INNER, EXPERTS = 16, 24, 6
Array = jax.Array


def grouped(
    x: Array,
    weights: Array,
    experts: Array,
    gate_up: Array,
    down: Array,
    activation: str,
    live: Array | None = None,
) -> Array:
    """What models run, on matrices [experts, hidden, inner, 2] and [experts, inner, hidden]."""

    def first(x: Array, sizes: Array, tokens: Array) -> Array:
        flat = gate_up.reshape(*gate_up.shape[:2], -1)
        both = grouped_project(x, flat, sizes).reshape(len(x), -1, 2)
        return gated(both, activation, axis=-1)

    def second(x: Array, sizes: Array, tokens: Array) -> Array:
        return grouped_project(x, down, sizes)

    return mix_experts(x, weights, experts, len(gate_up), first, second, live)


def reference(
    x: Array, weights: Array, experts: Array, gate_up: Array, down: Array, activation: str
) -> Array:
    """The same plainly: every expert on every token."""
    total = jnp.zeros(x.shape, jnp.float32)
    for expert in range(gate_up.shape[0]):
        share = jnp.sum(jnp.where(experts == expert, weights, 0.0), axis=-1, keepdims=True)
        both = project("th,hig->tig", x, gate_up[expert])
        made = project("ti,ih->th", gated(both, activation, axis=-1), down[expert])
        total = total + made * jnp.broadcast_to(share, made.shape)
    return total


def logits_of(x: Array, router: Array) -> Array:
    return project("th,he->te", x, router)


def arrays(*shapes: tuple[int, ...], dtype: str = "float32") -> list[jnp.ndarray]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.dtype(dtype)) for shape in shapes]


@pytest.mark.parametrize("dtype", ["float32", *slow("bfloat16")])
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (37, 2), *slow((64, EXPERTS), (2, 3))])
def test_equals_the_reference(tokens: int, count: int, dtype: str) -> None:
    """One token leaves most experts empty; `count` = EXPERTS leaves none."""
    (x,) = arrays((tokens, HIDDEN))
    router, gate_up, down = arrays(
        (HIDDEN, EXPERTS), (EXPERTS, HIDDEN, INNER, 2), (EXPERTS, INNER, HIDDEN), dtype=dtype
    )

    @jax.jit
    def both(x: Array, router: Array, *matrices: Array) -> tuple[Array, Array]:
        picked = route(logits_of(x, router), count, RoutingConfig())
        given = (x, *picked[:2], *matrices, "silu")
        return grouped(*given), reference(*given)

    ours, plain = both(x, router, gate_up, down)
    scale = float(jnp.abs(plain).max())
    np.testing.assert_allclose(np.asarray(ours), np.asarray(plain), atol=1e-5 * scale)
    assert ours.dtype == jnp.float32


@pytest.mark.slow
def test_padding_meets_no_expert() -> None:
    x, gate_up, down = arrays((3, HIDDEN), (EXPERTS, HIDDEN, INNER, 2), (EXPERTS, INNER, HIDDEN))
    weights, experts = jnp.full((3, 2), 0.5), jnp.asarray([[5, 1], [5, 2], [0, 5]])
    live = jnp.asarray([4, -1, 9])
    ours = grouped(x.at[1].set(jnp.nan), weights, experts, gate_up, down, "silu", live)
    whole = grouped(x, weights, experts, gate_up, down, "silu")
    np.testing.assert_allclose(ours, jnp.where(live[:, None] < 0, 0, whole), rtol=1e-6)


@pytest.mark.parametrize("chosen", [[0, 0, 0], [5, 5, 5], [2, 4, 2]])
@pytest.mark.slow
def test_empty_experts(chosen: list[int]) -> None:
    x, gate_up, down = arrays((3, HIDDEN), (EXPERTS, HIDDEN, INNER, 2), (EXPERTS, INNER, HIDDEN))
    experts, weights = jnp.asarray(chosen)[:, None], jnp.asarray([[0.5], [1.0], [2.0]])
    ours = grouped(x, weights, experts, gate_up, down, "gelu_tanh")
    plain = reference(x, weights, experts, gate_up, down, "gelu_tanh")
    np.testing.assert_allclose(np.asarray(ours), np.asarray(plain), rtol=1e-4, atol=1e-4)


def test_routing_equals_numpy() -> None:
    x, router = arrays((50, HIDDEN), (HIDDEN, EXPERTS))
    logits = np.asarray(x, np.float64) @ np.asarray(router, np.float64)
    chances = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    best = np.argsort(-chances, axis=-1)[:, :2]
    expected = np.take_along_axis(chances, best, axis=-1)
    weights, experts, *_ = route(logits_of(x, router), 2, RoutingConfig(normalize=False))
    np.testing.assert_array_equal(np.asarray(experts), best)
    np.testing.assert_allclose(np.asarray(weights), expected, atol=1e-5)
    weights, *_ = route(logits_of(x, router), 2, RoutingConfig())
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(np.asarray(weights), expected, atol=1e-5)


@pytest.mark.parametrize("group_score", ["best", "best_two"])
def test_a_choice_from_the_best_groups_by_biased_sigmoids(group_score: Any) -> None:
    """The bias and the groups decide who is chosen; weights are of the plain sigmoids."""
    (logits, bias) = arrays((40, 12), (12,))
    config = RoutingConfig(
        "sigmoid", scale=2.5, choice_bias=True, groups=4, top_groups=2, group_score=group_score
    )
    weights, experts, *_ = route(logits, 3, config, bias=bias)
    for token in range(40):
        scores = 1 / (1 + np.exp(-np.asarray(logits, np.float64)[token]))
        ranked = (scores + np.asarray(bias)).reshape(4, 3)
        best = np.sort(ranked, axis=1)
        value = best[:, -1] if group_score == "best" else best[:, -2:].sum(axis=1)
        ranked[np.argsort(value)[:2]] = -np.inf
        chosen = np.argsort(-ranked.reshape(-1))[:3]
        np.testing.assert_array_equal(np.asarray(experts)[token], chosen)
        expected = scores[chosen] / scores[chosen].sum() * 2.5
        np.testing.assert_allclose(np.asarray(weights)[token], expected, rtol=1e-5)


def test_a_choice_by_biased_logits_weighs_by_sigmoids() -> None:
    logits, bias = jnp.array([[4.0, 0.5, 0.0]]), jnp.array([-3.8, 0.0, 0.4])
    config = RoutingConfig(scores="sigmoid", normalize=False, choice_bias=True)
    by_scores = route(logits, 1, config, bias=bias)
    by_logits = route(logits, 1, replace(config, chooses_by_logits=True), bias=bias)
    assert (int(by_scores.experts[0, 0]), int(by_logits.experts[0, 0])) == (2, 1)
    np.testing.assert_allclose(by_logits.weights, 1 / (1 + np.exp(-0.5)) * np.ones((1, 1)), 1e-6)


@pytest.mark.parametrize("project", [grouped_project, matmul_by_tiles])
@pytest.mark.parametrize(
    "sizes", [[0, 3, 4, 0], [8, 0, 16, 1], [0, 0, 0, 1], [1, 9, 23, 7], [40, 0, 0, 0]]
)
def test_groups_of_rows_meet_their_own_matrix(project: Any, sizes: list[int]) -> None:
    x, weight = arrays((sum(sizes), HIDDEN), (4, HIDDEN, INNER))
    groups = np.repeat(np.arange(4), sizes)
    ours = project(x, weight, jnp.asarray(sizes, jnp.int32))
    expected = np.stack([np.asarray(x)[i] @ np.asarray(weight)[g] for i, g in enumerate(groups)])
    np.testing.assert_allclose(np.asarray(ours), expected, atol=1e-5)


@pytest.mark.slow
def test_gradients_equal_those_of_the_reference() -> None:
    x, router, *matrices = arrays(
        (20, HIDDEN), (HIDDEN, EXPERTS), (EXPERTS, HIDDEN, INNER, 2), (EXPERTS, INNER, HIDDEN)
    )

    def loss(run: Any, x: Array, router: Array, *matrices: Array) -> Array:
        picked = route(logits_of(x, router), 2, RoutingConfig())
        return jnp.mean(jnp.square(run(x, *picked[:2], *matrices, "silu")))

    gradients = jax.jit(jax.grad(loss, argnums=(1, 2, 3, 4)), static_argnums=0)
    ours, plain = (gradients(run, x, router, *matrices) for run in (grouped, reference))
    for left, right in zip(ours, plain, strict=True):
        scale = float(jnp.abs(right).max())
        np.testing.assert_allclose(np.asarray(left), np.asarray(right), atol=1e-5 * scale)
