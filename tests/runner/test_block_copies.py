"""Copies of cache blocks: programs that leave the rest of a cache alone, and slots of the host."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jengine.config import CacheGroup, CacheSpec
from jengine.config.cache import StateSpec
from jengine.runner.transfers.device_blocks import COUNTS, BlockPrograms
from jengine.runner.transfers.host_memory import HostMemory, through_pinned

FULL = CacheGroup(CacheSpec("full", 2, 4), (0, 1))
LATENT = CacheGroup(CacheSpec("latent", 1, 6), (0,))
STATES = (StateSpec((2, 3), (None, None)), StateSpec((4,), (None,)))
RECURRENT = CacheGroup(CacheSpec("recurrent", 0, 0, 2, STATES, 8), (0, 1))
BLOCKS = 9


def arrays_of(group: CacheGroup, mesh: Mesh) -> tuple[jax.Array, ...]:
    """A cache of distinct numbers."""
    shapes, spec = [(2, 2, BLOCKS, 3, 8)], PartitionSpec(None, None, None, None, "tp")
    if group is LATENT:
        shapes, spec = [(1, BLOCKS, 3, 6)], PartitionSpec()
    if group is RECURRENT:
        shapes, spec = [(2, BLOCKS, 2, 3), (2, BLOCKS, 4)], PartitionSpec()
    values = [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for shape in shapes]
    return tuple(jax.device_put(value, NamedSharding(mesh, spec)) for value in values)


@pytest.fixture(params=[1, 2])
def mesh(request: pytest.FixtureRequest) -> Mesh:
    if len(jax.devices()) < request.param:
        pytest.skip("one device")
    return Mesh(np.array(jax.devices()[: request.param]), ("tp",))


@pytest.mark.parametrize("group", [FULL, LATENT, RECURRENT], ids=lambda group: group.spec.kind)
def test_blocks_go_out_and_come_back_in_other_places(group: CacheGroup, mesh: Mesh) -> None:
    arrays = arrays_of(group, mesh)
    before = [np.asarray(array) for array in arrays]
    programs = BlockPrograms(group, arrays)
    memory, other = HostMemory(programs, 5), HostMemory(programs, 2)
    memory.keep([4, 0, 2], programs.read(arrays, [7, 1, 3]))
    assert other.put(1, memory.piece(2))
    assert not other.put(0, memory.piece(2)[1:])
    arrays = programs.write(arrays, [2, 5], memory.staged([4, 0]))
    arrays = programs.write(arrays, [8], other.staged([1]))
    axis = programs.axis
    for old, new in zip(before, map(np.asarray, arrays), strict=True):
        expected = old.copy()
        for to, origin in ((2, 7), (5, 1), (8, 3)):
            expected[(slice(None),) * axis + (to,)] = old[(slice(None),) * axis + (origin,)]
        np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize("group", [FULL, LATENT, RECURRENT], ids=lambda group: group.spec.kind)
def test_all_blocks_are_read_before_any_is_written(group: CacheGroup, mesh: Mesh) -> None:
    arrays = arrays_of(group, mesh)
    before = [np.asarray(array) for array in arrays]
    programs = BlockPrograms(group, arrays)
    sources, targets = [1, 2, 3, 7, 4], [2, 1, 5, 7, 8]  # a swap, and one to itself
    arrays = programs.copy(arrays, sources, targets)
    for old, new in zip(before, map(np.asarray, arrays), strict=True):
        expected, axis = old.copy(), programs.axis
        expected[(slice(None),) * axis + (targets,)] = old[(slice(None),) * axis + (sources,)]
        np.testing.assert_array_equal(new, expected)


def test_a_copy_copies_no_cache() -> None:
    arrays = arrays_of(FULL, Mesh(np.array(jax.devices()[:1]), ("tp",)))
    numbers = np.zeros(4, np.int32)
    compiled = BlockPrograms(FULL, arrays)._copy.lower(arrays, numbers, numbers).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= arrays[0].nbytes


def test_a_write_copies_no_cache() -> None:
    mesh = Mesh(np.array(jax.devices()[:1]), ("tp",))
    arrays = arrays_of(FULL, mesh)
    programs = BlockPrograms(FULL, arrays)
    values = programs.read(arrays, [1])
    numbers = np.zeros(COUNTS[0], np.int32)
    compiled = programs._write.lower(arrays, numbers, values).compile()
    analysis = compiled.memory_analysis()
    assert analysis.alias_size_in_bytes >= arrays[0].nbytes, "the cache is not donated"
    assert analysis.temp_size_in_bytes < arrays[0].nbytes


def test_values_reach_the_devices_own_memory_through_pinned_memory() -> None:
    device = jax.devices()[0]
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = through_pinned(values, device)
    assert found.sharding.memory_kind == device.default_memory().kind
    np.testing.assert_array_equal(found, values)
