"""Replicas that run each step together, with experts spread over all their devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax import Array

import jengine
from jengine.errors import ConfigError, UnsupportedFeature
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.test_expert_parallel import PARAMS, PROMPTS, engine, run


def negated(logits: Array) -> Array:
    return -logits


JOINT = {"joint_replicas": True, "enable_expert_parallel": True}


@pytest.mark.parametrize(
    ("family", "replicas", "devices", "settings"),
    [
        pytest.param("qwen3_moe", 2, 1, {}, id="kernels", marks=pytest.mark.slow),
        pytest.param(
            "mixtral", 2, 2, {"attention_backend": "xla"}, id="XLA", marks=pytest.mark.slow
        ),
        pytest.param(
            "qwen3_moe", 2, 2, {"all2all_backend": "all_to_all"}, id="tokens travel",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_answers_are_those_of_one_device(
    tmp_path: Path, family: str, replicas: int, devices: int, settings: dict[str, Any]
) -> None:
    folder = write_tiny_native(tmp_path, family)
    kernels = {"attention_backend": settings.get("attention_backend", "auto")}
    with engine(folder, 1, **kernels) as llm:
        expected = run(llm)
        before = llm.engine.loaded.parameters()
    together = {**JOINT, "data_parallel_size": replicas, "tensor_parallel_size": devices}
    with engine(folder, devices, **{**settings, **together}) as llm:
        loaded = llm.engine.loaded
        names = [name for name in loaded.parameters() if name.endswith("mlp.gate_up.weight")]
        leaves = dict(zip(loaded.order.names, loaded.leaves, strict=True))
        for name in names:
            whole, part = leaves[name].shape, leaves[name].addressable_shards[0].data.shape
            assert part[0] * replicas * devices == whole[0]
        for _ in range(2):  # then prompts are found in the caches
            assert run(llm) == expected
        assert run(llm, PROMPTS[2:3]) == expected[2:3]  # the other replicas step with nothing
        for path, array in loaded.parameters().items():
            np.testing.assert_array_equal(before[path], array)
        llm.update_params(before)
        assert run(llm) == expected
        llm.reload_weights()
        assert run(llm) == expected
        llm.resize_cache(2**21)
        assert run(llm) == expected


@pytest.mark.slow
def test_requests_of_every_kind_in_one_step(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3_moe")
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    params = [
        PARAMS.clone(temperature=1.0, seed=number, **more)
        for number, more in enumerate([
            {"logprobs": None}, {"prompt_logprobs": 2}, {"presence_penalty": 0.5}, {"logprobs": 3},
            {}, {"logits_processors": [negated]}, {"routed_experts_prompt_start": 3}, {},
        ])
    ]  # fmt: skip
    routed = {"enable_return_routed_experts": True}

    def told(llm: jengine.LLM) -> list[Any]:
        outputs = llm.generate(prompts, params)
        steer = {"layers.0.output": jengine.Steer(np.linspace(-1, 1, 32))}
        captured = llm.generate(prompts, PARAMS, capture=["layers.1.mlp"], intervene=steer)
        for output in captured:
            assert output.captured is not None
            assert len(output.captured["layers.1.mlp"]) == len(output.prompt_token_ids) + 11
        return [
            [one.outputs[0].token_ids, one.outputs[0].routed_experts.tolist()]
            for one in (*outputs, *captured)
        ]

    with engine(folder, 1, **routed) as llm:
        expected = told(llm)
    with engine(folder, 1, **JOINT, data_parallel_size=2, **routed) as llm:
        assert told(llm) == expected


@pytest.mark.slow
def test_prompts_as_embeddings_beside_others(tmp_path: Path) -> None:
    """Of one replica alone, and of all; the others step with the embeddings of no token."""
    folder = write_tiny_native(tmp_path, "qwen3_moe")
    together = {**JOINT, "data_parallel_size": 2, "enable_prompt_embeds": True}
    with engine(folder, 1, **together) as llm:
        expected = run(llm)
        rows = np.asarray(llm.engine.loaded.parameters()["embed.weight"], np.float32)
        given = [{"prompt_embeds": rows[prompt]} for prompt in PROMPTS]
        for mixed in ([given[0]], [given[0], *PROMPTS[1:]], given):
            llm.reset_prefix_cache()
            assert run(llm, mixed) == expected[: len(mixed)]


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"data_parallel_size": 1}, ConfigError, "data_parallel_size of at least 2"),
        ({"enable_expert_parallel": False}, ConfigError, "enable_expert_parallel=True"),
        ({"num_scheduler_steps": 2}, UnsupportedFeature, "num_scheduler_steps=2"),
        (
            {"logits_processors": ["tests.api.processor_functions:NoTransformers"]},
            UnsupportedFeature,
            "with joint_replicas there is no such place",
        ),
        ({"data_parallel_size": 8}, ConfigError, "4 experts cannot be spread evenly over 8"),
    ],
)
def test_what_cannot_step_together_is_refused(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        engine(
            write_tiny_native(tmp_path, "mixtral"), 1,
            **{**JOINT, "data_parallel_size": 2, **settings},
        )  # fmt: skip
