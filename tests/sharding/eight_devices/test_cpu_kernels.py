"""The CPU kernels on each device's shard: the same matmuls, weights packed per device, and engines
that answer as on one device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jengine
from jengine import SamplingParams
from jengine.layers.norm import RowNorm
from jengine.models.linear import Linear
from jengine.quantization.cpu import IN_PLACE, PACKED, CpuWeights
from jengine.quantization.cpu_shards import ShardedWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED, Unquantized
from pallas_kernels.choice import cpu_problem
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from tests.api.engines import random_prompts
from tests.models.tiny_models import write_tiny_native

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

HEADS = "kv_heads", "queries_of_kv_head", None
# On a mesh of 2 KV heads x 2 copies of them.
SHAPES = {
    "whole": WeightShape((6,), (5,), ("embed", None)),
    "heads out": WeightShape((6,), (2, 4, 3), ("embed", "kv_heads", None, None)),
    "heads in": WeightShape((2, 2, 3), (40,), ("kv_heads", None, None, "embed"), x_axes=HEADS),
    "gated": WeightShape((6,), (2, 20), ("embed", None, "mlp"), gated=True),
    "inner": WeightShape((12,), (7,), ("mlp", "embed")),
    "table": WeightShape((6,), (52,), ("vocab", "embed"), outputs_first=True),
    "odd table": WeightShape((6,), (51,), ("vocab", "embed"), outputs_first=True),
    "experts out": WeightShape((6,), (8, 2), ("experts", "embed", "mlp", None), groups=3),
    "experts in": WeightShape((8,), (6,), ("experts", "mlp", "embed"), groups=3),
}
SCHEMES = {"packed": PACKED, "in place": IN_PLACE}


def random(*shape: int, seed: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


def sharded(kernels: CpuWeights) -> ShardedWeights:
    devices = np.asarray(jax.devices()[:4]).reshape(1, 4)
    return ShardedWeights(kernels, Placement(engine_mesh(devices, (2,))))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_shards_are_packed_and_come_back(name: str, dtype: Any) -> None:
    scheme, shape = sharded(PACKED), SHAPES[name]
    weight = random(*shape.shape, dtype=dtype)
    packed = jax.jit(lambda w: scheme.prepare(shape, {"weight": w}))(weight)
    [spec] = scheme.prepared(shape, dtype).values()
    assert packed["weight"].shape == spec.shape
    restored = jax.jit(lambda p: scheme.restore(shape, p))(packed)["weight"]
    np.testing.assert_array_equal(restored, weight)


@pytest.mark.parametrize("kernels", SCHEMES)
@pytest.mark.parametrize("name", [name for name in SHAPES if "experts" not in name])
def test_shards_multiply_to_the_whole(name: str, kernels: str) -> None:
    scheme, shape = sharded(SCHEMES[kernels]), SHAPES[name]
    inputs = shape.matrix[0]
    results = shape.outputs[1:] if shape.gated else shape.outputs
    x, weight = random(3, 7, inputs), random(*shape.shape, seed=1)
    norm = RowNorm(random(inputs, seed=2), random(inputs, seed=3), 1e-5)
    bias = random(*shape.outputs, seed=4)
    around = Around(norm, bias, "silu", random(3, 7, *results, seed=5))
    expected = UNQUANTIZED.apply(shape, x, {"weight": weight}, around)

    def run(x: jax.Array, weight: jax.Array) -> jax.Array:
        return scheme.apply(shape, x, scheme.prepare(shape, {"weight": weight}), around)

    np.testing.assert_allclose(jax.jit(run)(x, weight), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("kernels", SCHEMES)
@pytest.mark.parametrize(
    ("name", "activation"), [("experts out", None), ("experts out", "silu"), ("experts in", None)]
)
def test_groups_of_rows_meet_their_shards(name: str, activation: Any, kernels: str) -> None:
    scheme, shape, sizes = sharded(SCHEMES[kernels]), SHAPES[name], jnp.asarray([2, 0, 3])
    x, weight = random(5, shape.matrix[0]), random(*shape.shape, seed=1)

    def run(x: jax.Array, weight: jax.Array) -> jax.Array:
        tensors = scheme.prepare(shape, {"weight": weight})
        return scheme.multiply_groups(shape, x, tensors, sizes, activation)

    expected = UNQUANTIZED.multiply_groups(shape, x, {"weight": weight}, sizes, activation)
    np.testing.assert_allclose(jax.jit(run)(x, weight), expected, rtol=1e-5, atol=1e-5)


def test_a_router_runs_whole_on_every_device() -> None:
    x = random(3, 8)
    np.testing.assert_allclose(jax.jit(sharded(PACKED).softmax)(x), jax.nn.softmax(x), rtol=1e-6)


@pytest.mark.parametrize("name", ["table", "odd table"])
def test_rows_are_found_where_they_are(name: str) -> None:
    scheme, shape = sharded(PACKED), SHAPES[name]
    table, indices = (
        random(*shape.shape, dtype=jnp.bfloat16),
        jnp.asarray([[0, 12, 13], [50, 26, 7]]),
    )

    def run(table: jax.Array) -> jax.Array:
        return scheme.lookup(shape, indices, scheme.prepare(shape, {"weight": table}))

    np.testing.assert_array_equal(jax.jit(run)(table), table[indices].astype(jnp.float32))


PROMPTS = random_prompts(1, 17, 60)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def engine(folder: Path, **settings: Any) -> jengine.LLM:
    return jengine.LLM(
        folder, skip_tokenizer_init=True, max_model_len=128, max_num_seqs=4, enforce_eager=True,
        show_progress=False, compilation_config={"variants": ["greedy"], "prefill_tokens": [128]},
        **settings,
    )  # fmt: skip


def tokens(llm: jengine.LLM) -> list[Any]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, GREEDY)]


def schemes(llm: jengine.LLM) -> set[Any]:
    """The kinds of schemes of all weights of a step, apart from tables that are only looked up."""
    order = llm.engine.loaded.order
    model = order.rebuild(order.shapes())
    modules = [module for _, module in nnx.iter_modules(model)]
    return {type(one.scheme) for one in modules if isinstance(one, Linear)}


MESHES = [
    pytest.param("llama", {"tensor_parallel_size": 4}, {ShardedWeights}, id="copies of heads"),
    pytest.param("mixtral", {"tensor_parallel_size": 2}, {ShardedWeights}, id="experts"),
    pytest.param(
        "qwen2", {"tensor_parallel_size": 2, "data_parallel_size": 2}, {ShardedWeights},
        id="replicas", marks=pytest.mark.slow,
    ),
    pytest.param(
        "llama", {"pipeline_parallel_size": 2}, {CpuWeights, ShardedWeights}, id="stages",
    ),
    pytest.param(
        "gemma2", {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, {ShardedWeights},
        id="sharded stages", marks=pytest.mark.slow,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("family", "mesh", "kinds"), MESHES)
def test_engines_answer_as_on_one_device(
    tmp_path: Path, family: str, mesh: dict[str, int], kinds: set[Any]
) -> None:
    folder = write_tiny_native(tmp_path, family)
    with engine(folder) as llm:
        assert schemes(llm) == {CpuWeights}
        expected = tokens(llm)
        before = llm.engine.loaded.parameters()
    with engine(folder, **mesh) as llm:
        assert tokens(llm) == expected
        assert schemes(llm) == kinds
        assert not llm.engine.order.unfit
        after = llm.engine.loaded.parameters()
        assert after.keys() == before.keys()
        for path, array in before.items():
            np.testing.assert_array_equal(after[path], array)
        llm.update_params(before)
        assert tokens(llm) == expected


def test_unpacked_shards_answer_alike(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3")
    with engine(folder, tensor_parallel_size=2) as llm:
        expected = tokens(llm)
    with engine(folder, tensor_parallel_size=2, pack_weights=False) as llm:
        assert not llm.engine.order.copied and schemes(llm) == {ShardedWeights}
        assert tokens(llm) == expected


def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_tiny_native(tmp_path, "llama")
    monkeypatch.setattr(ShardedWeights, "fits", lambda self, weight: not weight.gated)
    with engine(folder, tensor_parallel_size=2) as llm:
        assert schemes(llm) == {ShardedWeights, Unquantized}
        odd = tokens(llm)
    assert "do not fit the CPU kernels: layers.0.mlp.gate_up, layers.1" in caplog.text
    monkeypatch.undo()
    with engine(folder) as llm:
        assert tokens(llm) == odd


def test_a_gate_must_be_whole() -> None:
    by_inputs = WeightShape((8,), (2, 4), ("mlp", None, None), gated=True)
    assert not sharded(PACKED).fits(by_inputs)
    assert all(sharded(PACKED).fits(shape) for shape in SHAPES.values())
