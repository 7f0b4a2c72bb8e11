"""Experts on GPUs: the kernels, in Triton's interpreter, give what XLA gives for the same layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flax import nnx

from jengine.models.decoder import Decoder
from jengine.models.registry import model_config
from jengine.models.stages import stage_layout
from jengine.quantization.gpu import GpuWeights
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.runner.step.leaves import LeafOrder
from jengine.weights.live import named_arrays
from jengine.weights.stages import StagePlaces
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.tiny_models import FAMILIES, tiny_settings
from tests.pallas_kernels.implementations import TRITON
from tests.quantization.experts import CASES, Case, layer

ALONE = Placement(one_device_mesh())


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("case", CASES)
def test_experts_equal_those_of_xla(case: Case, backend: str) -> None:
    found, expected = (
        np.asarray(layer(scheme, case)) for scheme in (GpuWeights(ALONE), UNQUANTIZED)
    )
    assert not found[list(case.padding)].any()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=case.tolerance * scale)


def test_every_matmul_of_a_step_has_the_scheme_and_the_declared_arrays() -> None:
    config = model_config({**tiny_settings("mixtral"), "architectures": [FAMILIES["mixtral"]]})
    model = Decoder(config, rngs=nnx.Rngs(0))
    order = LeafOrder(model, StagePlaces(ALONE, stage_layout(config, 1)), "triton")
    declared: dict[str, Any] = named_arrays(model)
    leaves = order.leaves(declared.items())
    assert all(leaf is declared[name] for name, leaf in zip(order.names, leaves, strict=True))
    experts = order.rebuild(leaves).layers[0].mlp
    assert experts.gate_up.scheme == experts.down.scheme == GpuWeights(ALONE)
