"""Layers in the host's memory on several devices: sharded as on the devices, the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine.assembly import device_side
from jengine.assembly.host_weights import offloaded
from jengine.weights.abstract import abstract_model
from sharding.placement import HOST
from tests.api.engines import answers, tiny_engine
from tests.api.few_requests import PARAMS, PROMPTS


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh",
    [
        {"tensor_parallel_size": 2, "quantization": "int8"},
        {"data_parallel_size": 2, "tensor_parallel_size": 2, "attention_backend": "xla"},
    ],
    ids=["tp", "dp"],
)
def test_same_answers_as_from_the_devices(
    folder: Path, mesh: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_engine(folder, **mesh) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
        shards = [leaf.sharding.spec for leaf in llm.engine.runners[0].loaded.leaves]
    # As on GPUs: CPUs have nothing to offload to.
    monkeypatch.setattr(
        device_side, "with_layers_on_host",
        lambda args, config, places, matmuls: offloaded(1, abstract_model(config), places, matmuls),
    )  # fmt: skip
    with tiny_engine(folder, cpu_offload_gb=1, **mesh) as llm:
        for runner in llm.engine.runners:
            order, leaves = runner.loaded.order, runner.loaded.leaves
            found = {name for name, leaf in zip(order.names, leaves, strict=True)
                     if leaf.sharding.memory_kind == HOST}  # fmt: skip
            assert found == {name for name in order.names if name.startswith("layers.")}
            assert [leaf.sharding.spec for leaf in leaves] == shards
        assert answers(llm.generate(PROMPTS, PARAMS)) == expected
