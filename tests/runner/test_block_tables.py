"""Block tables on the device hold what plans add to them, however much it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jengine.plan import NewBlocks
from jengine.runner.programs.block_tables import WRITTEN_AT_ONCE, BlockWriter, block_entries

GROUPS, ROWS, PAGES = 2, 3, WRITTEN_AT_ONCE


def writer() -> BlockWriter:
    """A writer of tables of this test's shape."""
    where = SingleDeviceSharding(jax.devices()[0])
    tables = jax.ShapeDtypeStruct((GROUPS, ROWS, PAGES), jnp.int32, sharding=where)
    placement = SimpleNamespace(everywhere=where, is_cpu=True)
    compiler = SimpleNamespace(placement=placement, state=SimpleNamespace(tables=tables))
    return BlockWriter(cast(Any, compiler))


def test_every_new_block_has_its_entry() -> None:
    found = block_entries(
        [NewBlocks(2, 0, 5, [9, 8]), NewBlocks(1, 1, 0, [7]), NewBlocks(0, 0, 3, [])]
    )
    assert found.tolist() == [[0, 2, 5, 9], [0, 2, 6, 8], [1, 1, 0, 7]]
    assert found.dtype == np.int32
    assert block_entries([]).shape == (0, 4)


def test_more_blocks_than_one_run_writes() -> None:
    expected = np.random.default_rng(0).integers(1, 10**6, (GROUPS, ROWS, PAGES), dtype=np.int32)
    expected[1, 1, 10:] = 0
    new = [
        NewBlocks(row, group, 0, [int(block) for block in expected[group, row] if block])
        for group in range(GROUPS)
        for row in range(ROWS)
    ]
    writing = writer()
    tables = writing.warm_up(jnp.zeros((GROUPS, ROWS, PAGES), jnp.int32))
    assert not np.asarray(tables).any(), "warm-up writes padding only"
    tables = writing.write(tables, block_entries(new))
    np.testing.assert_array_equal(tables, expected)
