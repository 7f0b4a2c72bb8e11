"""New keys and values land in their slots of their layer, and nowhere else."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.cache_write import empty_cache, write_cache
from pallas_kernels.layout import KEYS, VALUES, cache_shape
from tests.pallas_kernels.implementations import IMPLEMENTATIONS

NOWHERE = np.iinfo(np.int32).max


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "uint16"])
@pytest.mark.parametrize("blocks", [1, 4099])
def test_an_empty_cache_is_zero(dtype: str, blocks: int, implementation: str) -> None:
    shape = cache_shape(layers=3, blocks=blocks, block_size=16, kv_heads=3, head_dim=20)
    np.ones(shape, dtype)  # so that memory which is used again holds something
    found = empty_cache(shape, dtype, implementation)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert not np.asarray(found.view(f"uint{8 * found.itemsize}")).any()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layer", [0, 2])
def test_slots_are_written_and_nothing_else(dtype: str, layer: int, implementation: str) -> None:
    shape = cache_shape(layers=3, blocks=5, block_size=4, kv_heads=2, head_dim=8)
    rng = np.random.default_rng(0)
    before = jnp.asarray(rng.normal(size=shape), jnp.dtype(dtype))
    slots = np.array([4, 19, NOWHERE, 7, NOWHERE, 11], np.int32)
    k, v = rng.normal(size=(2, len(slots), 2, 8)).astype(np.float32)
    after = write_cache(
        before, layer, jnp.asarray(k), jnp.asarray(v), jnp.asarray(slots), implementation
    )
    expected = np.asarray(before).copy()
    for index, slot in enumerate(slots):
        if slot != NOWHERE:
            expected[layer, KEYS, slot // 4, slot % 4] = k[index].reshape(-1).astype(after.dtype)
            expected[layer, VALUES, slot // 4, slot % 4] = v[index].reshape(-1).astype(after.dtype)
    np.testing.assert_array_equal(np.asarray(after), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_slots_just_past_the_ends_are_skipped(implementation: str) -> None:
    cache = jnp.zeros(cache_shape(1, 2, 4, 1, 4))
    ones = jnp.ones((3, 1, 4))
    outside = jnp.asarray([2 * 4, -1, -8], jnp.int32)
    after = write_cache(cache, 0, ones, ones, outside, implementation)
    assert not np.asarray(after).any()


def test_an_unknown_implementation_is_named() -> None:
    cache, ones = jnp.zeros(cache_shape(1, 2, 4, 1, 4)), jnp.ones((1, 1, 4))
    with pytest.raises(ValueError, match=r"write_cache.*'rocm'.*Available: .*xla"):
        write_cache(cache, 0, ones, ones, jnp.zeros(1, jnp.int32), implementation="rocm")
