"""Weights of the CPU kernels: packed and back unchanged, fused as the plain scheme composes, and an
engine whose numbers do not depend on what ran beside a request."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.config import AttentionConfig, LayerConfig, MlpConfig, ModelConfig
from jengine.layers.norm import RowNorm
from jengine.models.stages import stage_layout
from jengine.quantization.cpu import IN_PLACE, PACKED, CpuWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.dummy import dummy_model
from jengine.weights.live import named_arrays
from jengine.weights.stage_places import StagePlaces
from pallas_kernels.choice import cpu_problem
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.quantization.compiled import Compiled
from tests.quantization.experts import ADAPTED, BIASED, Case, layer

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

LAYER = LayerConfig(AttentionConfig(2, 1, 8), MlpConfig(24))
CONFIG = ModelConfig("LlamaForCausalLM", 50, 16, max_position=16, layers=(LAYER,))
SHAPES = {
    "plain": WeightShape((6,), (5,), (None,) * 2),
    "heads out": WeightShape((6,), (2, 3, 4), (None,) * 4),
    "heads in": WeightShape((2, 3), (40,), (None,) * 3),
    "gated": WeightShape((6,), (2, 21), (None,) * 3, gated=True),
    "table": WeightShape((6,), (50,), (None,) * 2, outputs_first=True),
    "groups": WeightShape((6,), (4, 2), (None,) * 4, groups=3),
}


def random(*shape: int, seed: int = 0, dtype: Any = jnp.float32) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, *slow(jnp.float32)])
def test_packing_loses_nothing(name: str, dtype: Any) -> None:
    shape = SHAPES[name]
    weight = random(*shape.shape, dtype=dtype)
    compiled = Compiled(PACKED)
    packed = compiled.prepare(shape, {"weight": weight})
    [spec] = PACKED.prepared(shape, dtype).values()
    assert packed["weight"].shape == spec.shape and packed["weight"].dtype == dtype
    np.testing.assert_array_equal(compiled.restore(shape, packed)["weight"], weight)


@pytest.mark.parametrize("name", ["plain", "heads out", "heads in", "gated", "table"])
@pytest.mark.parametrize("normed", [False, True])
def test_fused_equals_composed(name: str, normed: bool) -> None:
    shape = SHAPES[name]
    results = shape.outputs[1:] if shape.gated else shape.outputs
    x, weight = random(3, 7, 6), random(*shape.shape, seed=1)
    norm = RowNorm(random(6, seed=2), random(6, seed=3), 1e-5) if normed else None
    bias = random(*shape.outputs, seed=4)
    around = Around(norm, bias, "silu", random(3, 7, *results, seed=5))
    expected = Compiled(UNQUANTIZED).apply(shape, x, {"weight": weight}, around)
    for scheme in (Compiled(PACKED), Compiled(IN_PLACE)):
        found = scheme.apply(shape, x, scheme.prepare(shape, {"weight": weight}), around)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [PACKED, IN_PLACE])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_each_group_of_rows_meets_its_own_matrix(
    scheme: CpuWeights, activation: str | None
) -> None:
    shape, sizes = SHAPES["groups"], jnp.asarray([2, 0, 3], jnp.int32)
    x, weight = random(5, 6), random(*SHAPES["groups"].shape, seed=1)
    compiled = Compiled(scheme)
    tensors = compiled.prepare(shape, {"weight": weight})
    found = compiled.multiply_groups(shape, x, tensors, sizes, activation)
    expected = Compiled(UNQUANTIZED).multiply_groups(
        shape, x, {"weight": weight}, sizes, activation
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [PACKED, IN_PLACE])
@pytest.mark.parametrize("name", ["plain", "gated"])
def test_activations_that_the_kernels_lack(scheme: CpuWeights, name: str) -> None:
    shape = SHAPES[name]
    activation = "clamped_swiglu" if shape.gated else "gelu"
    x, weight, bias = random(3, 6), random(*shape.shape, seed=1), random(*shape.outputs, seed=4)
    norm = RowNorm(random(6, seed=2), None, 1e-5)
    around = Around(norm, bias, activation, random(3, shape.outputs[-1], seed=5))
    expected = Compiled(UNQUANTIZED).apply(shape, x, {"weight": weight}, around)
    compiled = Compiled(scheme)
    found = compiled.apply(shape, x, compiled.prepare(shape, {"weight": weight}), around)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", [PACKED, IN_PLACE])
@pytest.mark.parametrize("case", [BIASED, ADAPTED])
def test_experts_equal_those_of_xla(scheme: CpuWeights, case: Case) -> None:
    found, expected = layer(scheme, case), layer(UNQUANTIZED, case)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scheme", [PACKED, IN_PLACE])
def test_rows_of_a_table_are_found(scheme: CpuWeights) -> None:
    table, indices = random(50, 6, dtype=jnp.bfloat16), jnp.asarray([[3, 49], [0, 31]])
    compiled = Compiled(scheme)
    tensors = compiled.prepare(SHAPES["table"], {"weight": table})
    found = compiled.lookup(SHAPES["table"], indices, tensors)
    np.testing.assert_array_equal(found, table[indices].astype(jnp.float32))


def test_the_leaves_of_a_step_are_packed_and_come_back_as_they_were() -> None:
    model = dummy_model(CONFIG)
    places = StagePlaces(Placement(one_device_mesh()), stage_layout(CONFIG, 1))
    order = LeafOrder(model, places, "cpu")
    declared: dict[str, Any] = named_arrays(model)
    leaves = order.leaves(declared.items())
    shapes = {name: leaf.shape for name, leaf in zip(order.names, leaves, strict=True)}
    assert shapes["layers.0.mlp.gate_up.weight"] == (2, 16, 32, 1)
    assert tuple(leaf.shape for leaf in leaves) == tuple(one.shape for one in order.shapes())
    restored = order.values(leaves)
    for name, array in declared.items():
        np.testing.assert_array_equal(restored[name], array)


PROMPTS = [np.random.default_rng(n).integers(3, 2000, n).tolist() for n in (3, 20, 64, 130)]
WANTED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)


@cache
def engine(**settings: Any) -> jengine.LLM:
    return jengine.LLM(
        "demo", max_num_seqs=4, max_model_len=256, enforce_eager=True, show_progress=False,
        attention_backend="cpu", **settings,
    )  # fmt: skip


def numbers(llm: jengine.LLM, prompts: list[list[int]]) -> list[Any]:
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], WANTED)
    return [
        [sorted((token, one.logprob) for token, one in step.items()) for step in found.logprobs]
        for [found] in (output.outputs for output in outputs)
    ]


@pytest.mark.slow
def test_an_answer_has_the_same_bits_alone_in_a_batch_in_chunks_and_after_a_prefix_hit() -> None:
    llm = engine()
    alone = []
    for prompt in PROMPTS:
        llm.reset_prefix_cache()
        alone += numbers(llm, [prompt])
    assert numbers(llm, PROMPTS) == alone  # prompts whose prefixes are cached
    llm.reset_prefix_cache()
    assert numbers(llm, PROMPTS[::-1])[::-1] == alone
    assert numbers(engine(long_prefill_token_threshold=32), PROMPTS) == alone


@pytest.mark.slow
def test_tokens_equal_those_of_xla() -> None:
    xla = jengine.LLM(
        "demo", max_num_seqs=4, max_model_len=256, enforce_eager=True, show_progress=False,
        attention_backend="xla",
    )  # fmt: skip
    wanted = SamplingParams(temperature=0, max_tokens=16)
    asked = ["2 + 3 =", "Once upon a time", "The capital of"]
    ours, theirs = ([one.outputs[0].token_ids for one in llm.generate(asked, wanted)]
                    for llm in (engine(), xla))  # fmt: skip
    assert ours == theirs
