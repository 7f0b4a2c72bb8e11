"""Tokens that travel to their experts: the same sums as on one device, and none is dropped."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from jax.sharding import AxisType, Mesh, PartitionSpec

from jengine.layers.moe import Picked
from jengine.quantization.expert_exchange import EXCHANGES, FEWEST_TOKENS, Spread

HIDDEN, CHOSEN, EACH = 8, 3, 2  # EACH: experts of a device
EVERYWHERE, APART = PartitionSpec(), PartitionSpec(("tp", "replicas"))


def automatic(shape: tuple[int, ...], names: tuple[str, ...]) -> Mesh:
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))


def mixed(scales: Array, x: Array, picked: Picked, live: Array | None) -> Array:
    """Experts that multiply by a number and add their token's first lane."""
    experts = picked.experts if live is None else jnp.where(live[:, None] < 0, -1, picked.experts)
    scale = jnp.where(experts < 0, 0, scales[experts] * picked.weights)
    return jnp.sum(scale, axis=1, keepdims=True) * (x + x[:, :1])


def case(tokens: int, experts: int, *, all_to: int | None) -> tuple[Array, Picked, Array]:
    rng = np.random.default_rng(tokens)
    x = jnp.asarray(rng.normal(size=(tokens, HIDDEN)), jnp.float32)
    chosen = np.stack([rng.permutation(experts)[:CHOSEN] for _ in range(tokens)])
    if all_to is not None:  # every token's experts are on one device
        chosen = np.broadcast_to([EACH * all_to, EACH * all_to + 1, -1], chosen.shape)
    weights = jnp.asarray(rng.random((tokens, CHOSEN)), jnp.float32)
    live = np.where(rng.random(tokens) < 0.2, -1, 0)
    return x, Picked(weights, jnp.asarray(chosen, jnp.int32)), jnp.asarray(live, jnp.int32)


@pytest.mark.parametrize("tokens", [3, FEWEST_TOKENS * 8 - 1, FEWEST_TOKENS * 8, 101])
@pytest.mark.parametrize("all_to", [None, 0, 5])
@pytest.mark.parametrize("name", list(EXCHANGES))
def test_sums_are_those_of_one_device(name: str, tokens: int, all_to: int | None) -> None:
    mesh = automatic((4, 2), ("tp", "replicas"))
    scales = jnp.linspace(1.0, 2.0, 8 * EACH)
    x, picked, live = case(tokens, len(scales), all_to=all_to)
    spread = Spread((), ("tp", "replicas"), 8, EACH, is_cpu=True)

    def part(x: Array, picked: Picked, live: Array, own: Array) -> Array:
        return EXCHANGES[name](partial(mixed, own), x, picked, live, spread)

    run = jax.shard_map(
        part, mesh=mesh, in_specs=(EVERYWHERE, EVERYWHERE, EVERYWHERE, APART),
        out_specs=EVERYWHERE, check_vma=False,
    )  # fmt: skip
    made = jax.jit(run)(x, picked, live, scales)
    np.testing.assert_allclose(made, mixed(scales, x, picked, live), rtol=1e-5, atol=1e-6)


def test_tokens_travel_instead_of_sums() -> None:
    mesh = automatic((8,), ("tp",))
    for is_cpu, found in ((True, "all_to_all"), (False, "ragged_all_to_all")):
        spread = Spread((), ("tp",), 8, EACH, is_cpu)
        x, picked, live = case(101, 8 * EACH, all_to=None)

        def part(
            own: Array, x: Array, picked: Picked, live: Array, spread: Spread = spread
        ) -> Array:
            return EXCHANGES["all_to_all"](partial(mixed, own), x, picked, live, spread)

        run = jax.shard_map(
            part, mesh=mesh, in_specs=(PartitionSpec("tp"), EVERYWHERE, EVERYWHERE, EVERYWHERE),
            out_specs=EVERYWHERE, check_vma=False,
        )  # fmt: skip
        text = str(jax.make_jaxpr(run)(jnp.ones(8 * EACH), x, picked, live))
        assert f" {found}[" in text and " psum" not in text


@pytest.mark.parametrize("name", list(EXCHANGES))
@pytest.mark.parametrize(("replicas", "devices"), [(8, 1), (4, 2)])
def test_replicas_with_tokens_of_their_own(name: str, replicas: int, devices: int) -> None:
    mesh = automatic((replicas, devices), ("dp", "tp"))
    scales, tokens = jnp.linspace(1.0, 2.0, 8 * EACH), 23
    x, picked, live = case(replicas * tokens, len(scales), all_to=None)
    alike = ("tp",) if devices > 1 else ()
    spread = Spread(("dp",), alike, 8, EACH, is_cpu=True)

    def part(x: Array, picked: Picked, live: Array, own: Array) -> Array:
        return EXCHANGES[name](partial(mixed, own), x, picked, live, spread)

    own = PartitionSpec("dp")
    run = jax.shard_map(
        part, mesh=mesh, in_specs=(own, own, own, PartitionSpec(("dp", "tp"))),
        out_specs=own, check_vma=False,
    )  # fmt: skip
    made = jax.jit(run)(x, picked, live, scales)
    np.testing.assert_allclose(made, mixed(scales, x, picked, live), rtol=1e-5, atol=1e-6)
