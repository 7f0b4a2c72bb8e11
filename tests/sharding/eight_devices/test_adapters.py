"""Adapters on several devices: sharded as the weights that they are added to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jengine import LLMEngine, RequestOutput, SamplingParams
from jengine.errors import UnsupportedFeature
from tests.api.engines import is_idle, tiny_engine
from tests.lora.engines import (
    GREEDY,
    PLAIN,
    PROMPTS,
    SETTINGS,
    Expected,
    Models,
    Setup,
    check,
    merged_answers,
    write_models,
)
from tests.lora.test_experts import SETTINGS as OF_EXPERTS
from tests.lora.test_experts import Adapted
from tests.marks import slow
from tests.models.tiny_models import write_tiny_native

NAMES: list[str | None] = ["all", None, "queries", "mlp"]
LORA: dict[str, Any] = {**SETTINGS, "max_loras": 3}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return write_models(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def expected(models: Models) -> Expected:
    return merged_answers(models)


@pytest.fixture(scope="module")
def on_one(models: Models) -> list[Any]:
    """The answers of one device, which tests/lora compares with merged models."""
    with tiny_engine(models.base, **LORA) as llm:
        return Setup(llm, models).answer(NAMES)


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2},
        pytest.param(
            {"tensor_parallel_size": 2, "attention_backend": "xla"}, marks=pytest.mark.slow
        ),
        pytest.param({"data_parallel_size": 2, "tensor_parallel_size": 2}, marks=pytest.mark.slow),
    ],
)
def test_same_answers_as_on_one_device(
    models: Models, on_one: list[Any], settings: dict[str, Any]
) -> None:
    with tiny_engine(models.base, **LORA, **settings) as llm:
        outputs = Setup(llm, models).answer(NAMES)
        stacks = llm.engine.loaded.adapters
        assert stacks is not None
        down = dict(zip(stacks.weights, stacks.leaves[::2], strict=True))
        assert down["layers.0.mlp.down"].addressable_shards[0].data.shape[-1] == 24
    for output, name, truth in zip(outputs, NAMES, on_one, strict=True):
        check([output], [name], {name: [truth]})


@pytest.mark.parametrize(
    "settings",
    [
        {"prefill_context_parallel_size": 2},
        *slow(
            {"prefill_context_parallel_size": 4, "attention_backend": "xla"},
            {"prefill_context_parallel_size": 2, "tensor_parallel_size": 2},
        ),
    ],
    ids=str,
)
def test_devices_that_divide_tokens_add_the_adapters_of_their_own(
    models: Models, on_one: list[Any], settings: dict[str, Any]
) -> None:
    with tiny_engine(models.base, **LORA, **settings) as llm:
        outputs = Setup(llm, models).answer(NAMES)
    for output, name, truth in zip(outputs, NAMES, on_one, strict=True):
        check([output], [name], {name: [truth]})


@pytest.mark.parametrize(
    "settings",
    [
        {"pipeline_parallel_size": 2},
        pytest.param(
            {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}, marks=pytest.mark.slow
        ),
    ],
)
def test_stages_add_the_adapters_of_their_own_plans(
    models: Models, expected: Expected, settings: dict[str, Any]
) -> None:
    """More adapters than slots, so that slots change while other plans are in the stages."""
    with tiny_engine(models.base, **{**SETTINGS, **settings, "max_num_seqs": 4}) as llm:
        setup = Setup(llm, models)
        for names in (NAMES, ["mlp", "all", None, "mlp"], [None] * 4, ["all", "queries"] * 6):
            prompts = [PROMPTS[index % len(PROMPTS)] for index in range(len(names))]
            check(setup.answer(names, prompts), names, expected)
        scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        (ours,) = llm.generate(
            PROMPTS[1], scored, use_tqdm=False, lora_request=models.adapters["all"]
        )
        number = models.adapters["mlp"].lora_int_id
        llm.add_lora(models.adapters["mlp"])
        assert number in llm.list_loras() and llm.pin_lora(number)
        assert llm.remove_lora(number) and number not in llm.list_loras()
        assert is_idle(llm)
    with tiny_engine(models.merged["all"], **PLAIN) as llm:
        (truth,) = llm.generate(PROMPTS[1], scored, use_tqdm=False)
    for found, wanted in zip(ours.prompt_logprobs[1:], truth.prompt_logprobs[1:], strict=True):
        for token, entry in wanted.items():
            np.testing.assert_allclose(found[token].logprob, entry.logprob, atol=2e-4)


def test_a_slot_keeps_its_adapter_while_a_plan_is_in_the_stages(
    models: Models, expected: Expected
) -> None:
    """Blocks of an aborted request stay in the prefix cache: every stage must have computed them
    with the request's own adapter."""
    settings = {**SETTINGS, "max_loras": 1, "max_cpu_loras": 2, "skip_tokenizer_init": True}
    own, other = models.adapters["all"], models.adapters["queries"]
    with LLMEngine(models.base, **settings, pipeline_parallel_size=2, max_num_seqs=4) as engine:

        def run() -> list[RequestOutput]:
            outputs = []
            while engine.has_unfinished_requests():
                outputs += [one for one in engine.step() if one.finished]
            return outputs

        engine.add_request("first", PROMPTS[1], GREEDY, lora_request=own)
        engine.step()
        engine.abort_request("first")
        engine.add_request("second", PROMPTS[0], GREEDY, lora_request=other)
        run()
        engine.add_request("third", PROMPTS[1], GREEDY, lora_request=own)
        (found,) = run()
    assert found.num_cached_tokens
    assert found.outputs[0].token_ids == expected["all"][1].outputs[0].token_ids


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    folder = tmp_path_factory.mktemp("experts")
    return Adapted(write_tiny_native(folder / "base", "qwen3_moe"), folder, "qwen3_moe")


WHOLE: dict[str, Any] = {"tensor_parallel_size": 2, "enable_expert_parallel": True}


@pytest.mark.parametrize(
    "settings",
    [
        {"tensor_parallel_size": 2},
        WHOLE,
        *slow(
            {**WHOLE, "all2all_backend": "all_to_all"},
            {**WHOLE, "attention_backend": "xla"},
            {"tensor_parallel_size": 2, "attention_backend": "xla"},
            {"pipeline_parallel_size": 2},
            {"pipeline_parallel_size": 2, **WHOLE},
            {"prefill_context_parallel_size": 2},
            {"prefill_context_parallel_size": 2, "attention_backend": "xla"},
        ),
    ],
)
def test_experts_on_several_devices(adapted: Adapted, settings: dict[str, Any]) -> None:
    names = ["apart", None, "stacked", "apart"]
    with tiny_engine(adapted.base, **OF_EXPERTS, **settings) as llm:
        outputs = adapted.answer(llm, names)
        stacks = llm.engine.loaded.adapters
        assert stacks is not None
        down = dict(zip(stacks.weights, stacks.leaves[::2], strict=True))["layers.0.mlp.down"]
        own, whole = down.addressable_shards[0].data.shape, down.shape
        ways = settings.get("tensor_parallel_size", 1)
        assert np.prod(whole) == np.prod(own) * ways * settings.get("pipeline_parallel_size", 1)
    adapted.check(outputs, names, 1e-4)


def test_experts_that_move_have_no_adapters(adapted: Adapted) -> None:
    with pytest.raises(UnsupportedFeature, match=r"enable_eplb .*down_proj, gate_proj, up_proj"):
        tiny_engine(adapted.base, **OF_EXPERTS, **WHOLE, enable_eplb=True)
    moving = {**OF_EXPERTS, **WHOLE, "enable_eplb": True, "lora_target_modules": ["q_proj"]}
    with tiny_engine(adapted.base, **moving) as llm:
        adapted.check(adapted.answer(llm, [None] * 4), [None] * 4, 1e-4)
