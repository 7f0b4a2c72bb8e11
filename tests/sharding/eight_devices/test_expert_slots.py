"""Experts in slots: some on several devices, moved while the engine runs, with the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jengine
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.quantization.placed_experts import slots_of
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.test_expert_parallel import engine, run


def placement_of(llm: jengine.LLM) -> list[list[int]]:
    (found,) = llm.call_workers("expert_placement")
    return found


@pytest.mark.parametrize(
    ("family", "devices", "settings"),
    [
        pytest.param("qwen3_moe", 4, {}, id="kernels", marks=pytest.mark.slow),
        pytest.param("gpt_oss", 2, {}, id="biases", marks=pytest.mark.slow),
        pytest.param(
            "deepseek_v3", 4, {"attention_backend": "xla", "all2all_backend": "all_to_all"},
            id="tokens travel", marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_experts_move_and_answers_stay(
    tmp_path: Path, family: str, devices: int, settings: dict[str, Any]
) -> None:
    folder = write_tiny_native(tmp_path, family)
    kernels = {"attention_backend": settings.get("attention_backend", "auto")}
    with engine(folder, 1, **kernels) as llm:
        expected = run(llm)
        before = llm.engine.loaded.parameters()
    balance = {"num_redundant_experts": 4, "step_interval": 10_000, "window_size": 10_000}
    with engine(folder, devices, enable_eplb=True, eplb_config=balance, **settings) as llm:
        assert run(llm) == expected
        first = placement_of(llm)
        experts, layers = len(set(first[0])), len(first)
        assert first == [[slot % experts for slot in range(experts + 4)]] * layers
        for layers_now in (
            [[*range(experts), *[experts - 1] * 4]] * layers,
            [[*reversed(range(experts)), *[layer] * 4] for layer in range(layers)],
        ):
            llm.call_workers("place_experts", layers=layers_now)
            assert placement_of(llm) == layers_now
            assert run(llm) == expected
            for path, array in llm.engine.loaded.parameters().items():
                np.testing.assert_array_equal(before[path], array)
        llm.update_params(before)
        assert placement_of(llm) == first
        assert run(llm) == expected
        with pytest.raises(RequestError, match=r"layers\[0\] has 1 slots"):
            llm.call_workers("place_experts", layers=[[0]] * layers)


@pytest.mark.slow
def test_experts_are_moved_by_their_loads(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3_moe")
    with engine(folder, 1) as llm:
        expected = run(llm)
    balance = {"num_redundant_experts": 4, "step_interval": 3, "window_size": 3}
    settings = {"enable_eplb": True, "eplb_config": balance}
    with engine(folder, 4, enable_return_routed_experts=True, **settings) as llm:
        first = placement_of(llm)
        assert run(llm) == expected
        assert placement_of(llm) != first
        assert run(llm) == expected


def test_tokens_take_the_slots_of_an_expert_in_turn() -> None:
    experts = jnp.array([0, 1, 2, 1, 1, 0])
    picked = jnp.array([[1, 0], [1, 2], [0, 1], [1, 0]])
    assert slots_of(picked, experts, 3).tolist() == [[1, 0], [3, 2], [0, 4], [1, 5]]


@pytest.mark.parametrize(
    ("devices", "settings", "error", "said"),
    [
        (1, {}, ConfigError, "tensor_parallel_size of at least 2"),
        (2, {"pipeline_parallel_size": 2}, UnsupportedFeature, "pipeline_parallel_size=2"),
        (2, {"data_parallel_size": 2}, UnsupportedFeature, "data_parallel_size=2"),
        (2, {"eplb_config": {"num_redundant_experts": 1}}, ConfigError, "4 experts and 1 redun"),
    ],
)
def test_what_cannot_be_balanced_is_refused(
    tmp_path: Path, devices: int, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    assert jax.device_count() >= 4
    with pytest.raises(error, match=said):
        engine(write_tiny_native(tmp_path, "mixtral"), devices, enable_eplb=True, **settings)
