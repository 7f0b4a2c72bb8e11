"""Weights on GPUs: experts in Triton's interpreter equal those of XLA, and what is rounded."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jengine.layers.norm import RowNorm
from jengine.models.registry import model_config
from jengine.models.stages import stage_layout
from jengine.quantization.backends import matmul_backend, step_scheme
from jengine.quantization.gpu import GpuWeights
from jengine.quantization.scheme import Around, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.abstract import abstract_model
from jengine.weights.dummy import dummy_model
from jengine.weights.live import named_arrays
from jengine.weights.stage_places import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.tiny_models import FAMILIES, tiny_settings
from tests.pallas_kernels.implementations import TRITON
from tests.quantization.experts import CASES, Case, layer

ALONE = Placement(one_device_mesh())


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("case", CASES)
def test_experts_equal_those_of_xla(case: Case, backend: str) -> None:
    found, expected = (
        np.asarray(layer(scheme, case)) for scheme in (GpuWeights(ALONE), UNQUANTIZED)
    )
    assert not found[list(case.padding)].any()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=case.tolerance * scale)


@pytest.mark.slow
def test_every_matmul_of_a_step_has_the_scheme_and_the_declared_arrays() -> None:
    config = model_config({**tiny_settings("mixtral"), "architectures": [FAMILIES["mixtral"]]})
    model = dummy_model(config)
    order = LeafOrder(model, StagePlaces(ALONE, stage_layout(config, 1)), "triton")
    declared: dict[str, Any] = named_arrays(model)
    leaves = order.leaves(declared.items())
    assert all(leaf is declared[name] for name, leaf in zip(order.names, leaves, strict=True))
    experts = order.rebuild(leaves).layers[0].mlp
    assert experts.gate_up.scheme == experts.down.scheme == GpuWeights(ALONE)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("dtype", "inner", "made"),
    [("bfloat16", True, "bfloat16"), ("bfloat16", False, "float32"),
     ("float16", True, "float32"), ("float32", True, "float32")],
)  # fmt: skip
def test_results_between_matmuls_are_rounded(
    dtype: str, inner: bool, made: str, gated: bool
) -> None:
    """The values are those of float32 results to a rounding of bfloat16, wherever it comes."""
    rng = np.random.default_rng(0)
    outputs = (2, 24) if gated else (24,)
    axes = ("embed", *(None for _ in outputs))
    weight = WeightShape((32,), outputs, axes, gated=gated, inner=inner)
    tensors = {"weight": jnp.asarray(rng.normal(size=weight.shape), dtype)}
    x = jnp.asarray(rng.normal(size=(5, 32)), jnp.float32)
    bias = None if gated else jnp.asarray(rng.normal(size=outputs), dtype)
    around = Around(RowNorm(jnp.ones(32), None, 1e-5), bias, "silu" if gated else None)
    found = GpuWeights(ALONE).apply(weight, x, tensors, around)
    expected = UNQUANTIZED.apply(weight, x, tensors, around)
    assert found.dtype == made
    if made == "float32":
        np.testing.assert_array_equal(found, expected)
        return
    assert np.asarray(found, np.float32).tolist() != np.asarray(expected).tolist()
    scale = float(jnp.abs(expected).max())
    np.testing.assert_allclose(
        np.asarray(found, np.float32), expected, rtol=2**-6, atol=2**-8 * scale
    )


def test_deterministic_engines_exchange_exact_sums() -> None:
    kinds = {}
    for exact in (False, True):
        backend = matmul_backend("triton", pack=True, exact=exact)
        kinds[exact] = step_scheme(UNQUANTIZED, backend, ALONE)
    assert kinds == {False: GpuWeights(ALONE), True: GpuWeights(ALONE, exact=True)}
    assert matmul_backend("cpu", pack=False, exact=True) == "cpu in place"


def test_what_feeds_attention_and_matmuls_is_inner() -> None:
    config = model_config({**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]})
    layer = abstract_model(config).layers[0]
    inner = {
        name: module.shape.inner
        for name, module in (
            ("qkv", layer.attention.qkv), ("out", layer.attention.out),
            ("gate_up", layer.mlp.gate_up), ("down", layer.mlp.down),
        )
    }  # fmt: skip
    assert inner == {"qkv": True, "out": False, "gate_up": True, "down": False}
