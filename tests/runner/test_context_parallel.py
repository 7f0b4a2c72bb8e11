"""The order of tokens that groups of devices divide: nothing is lost, and prompts are balanced."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings

from jengine.runner.step.context_parallel import ContextShards
from jengine.runner.variants.buckets import Bucket, StepShapes
from sharding.placement import Placement


class Divided(Placement):
    """A placement of so many groups, without their devices."""

    def __init__(self, groups: int) -> None:
        object.__setattr__(self, "groups", groups)

    def held(self, array: jax.Array, axes: Any) -> jax.Array:
        return array

    def ways(self, axis: str) -> int:
        return getattr(self, "groups")  # noqa: B009 (the base class is frozen)


def shards_of(groups: int, rows: int, tiles: int, tile: int) -> ContextShards:
    shapes = StepShapes((), 16, tile, 8, 64)
    return ContextShards(Bucket(rows, tiles * tile, 4), shapes, Divided(groups))


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from([1, 2, 4]), st.integers(0, 3), st.integers(0, 5), st.sampled_from([1, 2, 8]),
    st.data(),
)  # fmt: skip
def test_there_and_back(groups: int, rows: int, tiles: int, tile: int, data: st.DataObject) -> None:
    shards = shards_of(groups, rows * groups, tiles * groups, tile)
    count = (rows + tiles * tile) * groups
    tokens = np.arange(2 * count, dtype=np.int32).reshape(count, 2)
    index = st.integers(0, count - 1)
    some = data.draw(st.lists(index, min_size=1, max_size=5)) if count else []

    @jax.jit
    def there_and_back(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        sharded = shards.of_tokens(tokens)
        return shards.in_order(sharded), shards.taken(sharded, jnp.array(some, jnp.int32))

    back, taken = there_and_back(tokens)
    np.testing.assert_array_equal(back, tokens)
    np.testing.assert_array_equal(taken, tokens[some])


def test_a_device_has_rows_and_tiles_in_turn() -> None:
    shards = shards_of(2, 4, 4, 2)
    assert shards.bucket == Bucket(2, 4, 4)
    first, second = jax.jit(shards.of_tokens)(np.arange(12)).reshape(2, 6).tolist()
    assert first == [0, 2, 4, 5, 8, 9] and second == [1, 3, 6, 7, 10, 11]
    first, second = jax.jit(shards.of_tiles)(np.arange(8)).reshape(2, 4).tolist()
    assert first == [0, 2, 4, 6] and second == [1, 3, 5, 7]
