"""Norm, rotation and cache write in one: equals the layers that models use, one after the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from jengine.layers.norm import rms_norm
from jengine.layers.rope import rotate
from pallas_kernels.cache_write import rotate_and_write, write_cache
from pallas_kernels.layout import cache_shape
from tests.marks import slow
from tests.pallas_kernels.implementations import IMPLEMENTATIONS

TOKENS, LAYER, EPS = 5, 1, 1e-5
SLOTS = jnp.asarray([4, 0, np.iinfo(np.int32).max, 11, -1], jnp.int32)  # two are padding


def random(*shape: int, seed: int = 0) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@jax.jit
def one_after_the_other(
    cache: Array, qkv: Array, rotation: tuple[Array, Array] | None, norms: tuple | None,
    weight_offset: float,
) -> tuple[Array, Array]:  # fmt: skip
    tokens, kv_heads, members, head_dim = qkv.shape
    q, k, v = qkv[..., :-2, :], qkv[..., -2, :], qkv[..., -1, :]
    if norms is not None:
        q, k = (
            rms_norm(x, w.astype(jnp.float32) + weight_offset, EPS)
            for x, w in zip((q, k), norms, strict=True)
        )
    q = q.reshape(tokens, kv_heads * (members - 2), head_dim)
    if rotation is not None:
        turned = 2 * rotation[0].shape[-1]
        q, k = (
            jnp.concatenate([rotate(x[..., :turned], *rotation), x[..., turned:]], axis=-1)
            for x in (q, k)
        )
    return q, write_cache(cache, LAYER, k, v, SLOTS)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("norm", [None, "head", "whole"])
@pytest.mark.parametrize(
    ("turned", "kv_heads", "group", "dtype"),
    [
        (8, 2, 3, "float32"), (None, 3, 2, "bfloat16"), (8, 3, 1, "float32"),
        *slow((None, 2, 3, "float32"), (8, 3, 2, "bfloat16"), (8, 1, 1, "float32")),
        *slow((8, 1, 4, "float32"), (8, 4, 1, "bfloat16")),
        *slow((16, 2, 3, "float32"), (16, 3, 2, "bfloat16"), (None, 1, 1, "float32")),
        *slow((16, 1, 1, "float32")),
    ],
)  # fmt: skip
def test_equals_the_layers(
    implementation: str, dtype: str, norm: str | None, turned: int | None, kv_heads: int, group: int
) -> None:
    head_dim, offset = 16, 1.0 if dtype == "bfloat16" else 0.0
    qkv = random(TOKENS, kv_heads, group + 2, head_dim)
    cache = random(*cache_shape(2, 3, 4, kv_heads, head_dim), seed=1).astype(dtype)
    q_shape, k_shape = (kv_heads, group, head_dim), (kv_heads, head_dim)
    norms = {
        None: None,
        "head": (random(head_dim, seed=2), random(head_dim, seed=3)),
        "whole": (random(*q_shape, seed=2), random(*k_shape, seed=3)),
    }[norm]
    if norms is not None:
        norms = tuple(weight.astype(dtype) for weight in norms)
    rotation = None
    if turned is not None:
        angles = random(TOKENS, turned // 2, seed=4)
        rotation = jnp.cos(angles), jnp.sin(angles)
    q, after = rotate_and_write(
        cache, LAYER, qkv, SLOTS,
        rotation=rotation, norms=norms, eps=EPS, weight_offset=offset,
        implementation=implementation,
    )  # fmt: skip
    expected_q, expected = one_after_the_other(cache, qkv, rotation, norms, offset)
    assert q.dtype in (jnp.float32, cache.dtype)  # attention would round it to the latter
    of_q = 2**-8 if q.dtype == jnp.bfloat16 else 1e-5
    np.testing.assert_allclose(q.astype(jnp.float32), expected_q, rtol=of_q, atol=1e-5)
    after, expected = (np.asarray(x, np.float32) for x in (after, expected))
    # The last bit of float32 may round a bfloat16 the other way.
    tolerance = 1e-5 if dtype == "float32" else 2**-7
    np.testing.assert_allclose(after, expected, rtol=tolerance, atol=1e-5)
    untouched = np.ones((3 * 4,), bool)
    untouched[[4, 0, 11]] = False
    for plane in (0, 1):
        kept = np.asarray(cache, np.float32)[LAYER, plane].reshape(12, -1)[untouched]
        np.testing.assert_array_equal(after[LAYER, plane].reshape(12, -1)[untouched], kept)
    np.testing.assert_array_equal(after[0], np.asarray(cache, np.float32)[0])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("head_dim", [80, *slow(96, 256)])
def test_head_sizes(implementation: str, head_dim: int) -> None:
    qkv = random(TOKENS, 2, 4, head_dim)
    cache = jnp.zeros(cache_shape(2, 3, 4, 2, head_dim))
    angles = random(TOKENS, head_dim // 2, seed=4)
    options = {"norms": (random(head_dim, seed=2), random(head_dim, seed=3)), "eps": EPS}
    q, after = rotate_and_write(
        cache, LAYER, qkv, SLOTS, rotation=(jnp.cos(angles), jnp.sin(angles)),
        implementation=implementation, **options,
    )  # fmt: skip
    expected_q, expected = one_after_the_other(
        cache, qkv, (jnp.cos(angles), jnp.sin(angles)), options["norms"], 0.0
    )
    np.testing.assert_allclose(q, expected_q, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(after, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("bad", "dtype"), [(np.nan, "bfloat16"), (-np.inf, "bfloat16"), (1e6, "float16")]
)
def test_values_that_are_not_finite_become_zeros_beside_keys_of_nan(
    implementation: str, bad: float, dtype: str
) -> None:
    """Of one head of one token. The last is finite as float32 and not in the cache."""
    kv_heads, group, head_dim = 2, 3, 16
    healthy = random(TOKENS, kv_heads, group + 2, head_dim)
    sick = healthy.at[1, 1, -1, 5].set(bad)
    angles = random(TOKENS, 4, seed=4)
    cache = jnp.zeros(cache_shape(2, 3, 4, kv_heads, head_dim), dtype)

    def run(qkv: Array, implementation: str) -> tuple[np.ndarray, np.ndarray]:
        q, after = rotate_and_write(
            cache, LAYER, qkv, SLOTS, rotation=(jnp.cos(angles), jnp.sin(angles)), finite=True,
            implementation=implementation,
        )  # fmt: skip
        after = np.array(after[LAYER], np.float32).reshape(2, 12, kv_heads, head_dim)
        return np.asarray(q, np.float32), after

    (q, found), (same, expected) = (run(qkv, implementation) for qkv in (sick, healthy))
    np.testing.assert_array_equal(q, same)
    slot = int(SLOTS[1])
    assert np.isnan(found[0, slot, 1]).all()
    assert found[1, slot, 1, 5] == 0
    expected[0, slot, 1], expected[1, slot, 1, 5] = np.nan, 0
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(found, run(sick, "xla")[1], rtol=2**-7, atol=1e-5)
