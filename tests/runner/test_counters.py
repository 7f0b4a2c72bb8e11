"""The counters of split attention: no two calls of a step may count in one array at a time."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.layers.attention import ReadInputs
from jengine.runner.step.batch import StepBatch
from jengine.runner.step.paged import paged_attention
from jengine.runner.variants.buckets import Bucket, StepShapes
from pallas_kernels.layout import cache_shape
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.pallas_kernels.implementations import TRITON

HEADS = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16)
MODEL = ModelConfig("test", 64, 32, max_position=256, layers=(LayerConfig(HEADS, MlpConfig(64)),))
BUCKET = Bucket(4, 0, 16)
CALLBACK = re.compile(r"%([\w.-]+) = .* custom-call\(.*callback")
DEFINED = re.compile(r"%([\w.-]+) = ")
NAMED = re.compile(r"%([\w.-]+)")


def two_reads(implementation: str) -> tuple[Any, tuple[Any, ...]]:
    """A step with two attentions over the same tables, neither of which reads the other's
    result; and its inputs."""
    shapes = StepShapes(
        MODEL.groups, 16, 16, max_rows=4, max_model_len=256, attention=implementation
    )

    def step(cache: Any, q: Any, tables: Any, positions: Any) -> Any:
        starts = jnp.zeros(4, jnp.int32)
        none = jnp.zeros(0, jnp.int32)
        batch = StepBatch(positions, (tables,), (starts,), none, none)
        attend = paged_attention(batch, BUCKET, shapes, Placement(one_device_mesh()))
        first, caches = attend((cache,), 0, ReadInputs(HEADS, q))
        second, _ = attend(caches, 0, ReadInputs(HEADS, 2 * q))
        return first, second

    rng = np.random.default_rng(0)
    cache = rng.normal(size=cache_shape(1, 65, 16, 2, 16, jnp.float32)).astype(np.float32)
    q = rng.normal(size=(4, 2, 2, 16)).astype(np.float32)
    tables = rng.permutation(64).reshape(4, 16).astype(np.int32) + 1
    return step, (cache, q, tables, np.array([200, 3, 250, -1], np.int32))


@pytest.mark.parametrize("implementation", [TRITON])
def test_two_attentions_over_the_same_tables_are_ordered_by_what_they_count(
    implementation: str,
) -> None:
    step, given = two_reads(implementation)
    text = jax.jit(step).lower(*given).compile().as_text()
    calls = CALLBACK.findall(text)
    assert len(calls) == 2
    before = {name: earlier_than(text, name) for name in calls}
    assert any(one in before[other] for one in calls for other in calls), "nothing orders them"
    expected, _ = two_reads("xla")
    for found, wanted in zip(jax.jit(step)(*given), jax.jit(expected)(*given), strict=True):
        np.testing.assert_allclose(found[:3], wanted[:3], rtol=1e-4, atol=1e-5)


def earlier_than(text: str, name: str) -> set[str]:
    """What an instruction of a compiled program depends on."""
    lines = {}
    for line in text[text.index("ENTRY") :].splitlines()[1:]:
        if defined := DEFINED.search(line):
            lines[defined[1]] = NAMED.findall(line[defined.end() :])
    found: set[str] = set()
    waiting = list(lines[name])
    while waiting:
        one = waiting.pop()
        if one in lines and one not in found:
            found.add(one)
            waiting += lines[one]
    return found
