"""Experts that devices have whole: the same answers, a share of the weights, and sums alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.errors import ConfigError
from jengine.quantization.whole_experts import WholeExperts
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.test_cpu_kernels import schemes

PROMPTS = random_prompts(1, 17, 60, 130)
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)


def engine(folder: Path, devices: int, **settings: Any) -> jengine.LLM:
    usual = {"tensor_parallel_size": devices, "enable_expert_parallel": devices > 1}
    return tiny_engine(folder, max_model_len=256, **{**usual, **settings})


def run(llm: jengine.LLM, prompts: list[Any] = PROMPTS) -> list[Any]:
    return answers(llm.generate(prompts, PARAMS))


@pytest.mark.parametrize(
    ("family", "devices", "settings"),
    [
        pytest.param("mixtral", 2, {"attention_backend": "xla"}, id="XLA", marks=pytest.mark.slow),
        pytest.param("qwen3_moe", 4, {}, id="kernels"),
        pytest.param("gpt_oss", 2, {}, id="biases", marks=pytest.mark.slow),
        pytest.param("deepseek_v3", 4, {}, id="shared expert", marks=pytest.mark.slow),
        pytest.param("llama4", 2, {}, id="weighed inputs", marks=pytest.mark.slow),
        pytest.param(
            "mixtral", 2, {"pipeline_parallel_size": 2}, id="stages", marks=pytest.mark.slow
        ),
        pytest.param(
            "mixtral", 2, {"data_parallel_size": 2}, id="replicas", marks=pytest.mark.slow
        ),
        pytest.param(
            "qwen3_moe", 2, {"pack_weights": False}, id="in place", marks=pytest.mark.slow
        ),
        pytest.param(
            "qwen3_moe",
            4,
            {"all2all_backend": "all_to_all"},
            id="tokens travel",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "llama4",
            2,
            {"all2all_backend": "all_to_all", "pipeline_parallel_size": 2},
            id="tokens travel in stages",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_answers_are_those_of_one_device(
    tmp_path: Path, family: str, devices: int, settings: dict[str, Any]
) -> None:
    folder = write_tiny_native(tmp_path, family)
    kernels = {"attention_backend": settings.get("attention_backend", "auto")}
    with engine(folder, 1, **kernels) as llm:
        expected = run(llm)
        before = llm.engine.loaded.parameters()
    with engine(folder, devices, **settings) as llm:
        assert WholeExperts in schemes(llm)
        assert run(llm) == expected
        for path, array in llm.engine.loaded.parameters().items():
            np.testing.assert_array_equal(before[path], array)
        llm.update_params(before)
        assert run(llm) == expected


@pytest.mark.slow
def test_the_experts_of_tokens_are_those_of_one_device(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "qwen3_moe")
    routed = {"enable_return_routed_experts": True}

    def experts(llm: jengine.LLM) -> list[Any]:
        outputs = llm.generate(PROMPTS, PARAMS)
        return [output.outputs[0].routed_experts.tolist() for output in outputs]

    with engine(folder, 1, **routed) as llm:
        expected = experts(llm)
    with engine(folder, 2, data_parallel_size=2, **routed) as llm:
        assert experts(llm) == expected
        assert experts(llm) == expected  # and of cached tokens


@pytest.mark.slow
def test_experts_that_are_rounded_at_load(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "mixtral")
    with engine(folder, 1, quantization="int8", attention_backend="xla") as llm:
        expected = run(llm)
    with engine(folder, 2, quantization="int8", attention_backend="xla") as llm:
        assert run(llm) == expected
        llm.save(tmp_path / "saved")
    with engine(tmp_path / "saved", 1, attention_backend="xla") as llm:
        assert run(llm) == expected


def test_devices_exchange_sums_alone(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "mixtral")
    with engine(folder, 4, attention_backend="xla") as llm:
        loaded = llm.engine.loaded
        tier = next(tier for tier in loaded.programs.tiers if str(tier) == "random")
        bucket = next(iter(loaded.ladders.buckets()))
        compiled, _ = loaded.programs.compiler.compile(bucket, tier)
        parts = {name: leaf.addressable_shards[0].data.shape
                 for name, leaf in loaded.parameters().items()}  # fmt: skip
        whole = {name: leaf.shape for name, leaf in loaded.parameters().items()}
        layers, hidden = len(llm.engine.model.layers), llm.engine.model.hidden_size
    name = "layers.0.mlp.gate_up.weight"
    assert parts[name] == (whole[name][0] // 4, *whole[name][1:])
    text = compiled.as_text()
    for kind in ("all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert f" {kind}(" not in text
    sums = re.findall(r"= [a-z0-9]+\[([0-9,]*)\]\S* all-reduce\(", text)
    assert sum(shape.endswith(f",{hidden}") for shape in sums) == 2 * layers


@pytest.mark.parametrize(
    ("family", "devices", "said"),
    [("llama", 2, "LlamaForCausalLM has no experts"), ("mixtral", 8, "4 experts .* 8 devices")],
)
def test_what_cannot_be_spread_is_refused(
    tmp_path: Path, family: str, devices: int, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        engine(write_tiny_native(tmp_path, family), devices)


def test_tokens_travel_to_whole_experts_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="all_to_all' without enable_expert_parallel=True"):
        engine(write_tiny_native(tmp_path, "mixtral"), 1, all2all_backend="all_to_all")
