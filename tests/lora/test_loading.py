"""Adapters while an engine runs: loaded, replaced, dropped, and refused by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

import jengine
from jengine import LoRARequest
from jengine.engine.questions import CallWorkers
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.executor.calls import Outcome
from jengine.lora.peft_files import read_adapter
from jengine.weights.safetensors_file import read_header
from jengine.wire.arrays import ARRAY, ArrayFrame
from tests.api.engines import tiny_engine
from tests.lora.engines import GREEDY, PLAIN, PROMPTS, Expected, Setup, check


def test_adapters_are_listed_removed_and_loaded_again(made: Setup) -> None:
    llm, one = made.llm, made.adapters["queries"]
    llm.add_lora(one)
    assert one.lora_int_id in llm.list_loras()
    assert llm.remove_lora(one.lora_int_id)
    assert not llm.remove_lora(one.lora_int_id)
    assert one.lora_int_id not in llm.list_loras()
    assert llm.add_lora(one)
    assert not llm.add_lora(one)


def store_of(llm: jengine.LLM) -> set[str]:
    return set(llm.engine.loaded.adapters.store._adapters)  # type: ignore[union-attr]


def test_the_least_recently_used_adapter_is_dropped_and_a_pinned_one_stays(made: Setup) -> None:
    llm = made.llm
    for number in llm.list_loras():
        llm.remove_lora(number)
    first, second, third = made.adapters.values()
    for one in (first, second):
        llm.add_lora(one)
    llm.pin_lora(first.lora_int_id)
    assert llm.add_lora(third)
    assert llm.list_loras() == {first.lora_int_id, third.lora_int_id}
    assert len(store_of(llm)) == 2
    llm.remove_lora(first.lora_int_id)
    assert len(store_of(llm)) == 1
    with pytest.raises(RequestError, match=r"pin_lora\(9\)"):
        llm.pin_lora(9)


@pytest.mark.slow
def test_a_trainers_matrices_become_an_adapter(made: Setup, expected: Expected) -> None:
    """By PEFT's names and by our own; a second call replaces the first for new requests."""
    tensors = {
        name: np.array(tensor.read())
        for name, tensor in read_header(
            Path(made.adapters["all"].lora_path) / "adapter_model.safetensors"
        ).items()
    }
    live = LoRARequest("live", 50)
    assert made.llm.add_lora(live, tensors, alpha=8)
    names: list[str | None] = ["all"] * len(PROMPTS)
    outputs = made.llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=live)
    check(outputs, names, expected)
    adapter = read_adapter(made.adapters["queries"].lora_path, made.llm.engine.model, max_rank=4)
    own = {path: {"a": part.down, "b": part.up} for path, part in adapter.parts.items()}
    assert made.llm.add_lora(live, own)
    outputs = made.llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=live)
    check(outputs, ["queries"] * len(PROMPTS), expected)
    made.llm.remove_lora(50)


def test_matrices_whose_parts_do_not_fit_are_refused(made: Setup) -> None:
    frame = msgspec.msgpack.encode(ArrayFrame("<f4", (2, 2), b"\0" * 15))
    matrices = {"layers.0.attention.qkv.a": msgspec.msgpack.Ext(ARRAY, frame)}
    given = msgspec.msgpack.encode({"folder": "", "matrices": matrices})
    (answer,) = made.llm.engine.client.ask(CallWorkers("add_adapter", given))
    problem = msgspec.msgpack.decode(answer, type=Outcome).problem
    assert problem is not None and "takes 16 bytes; found 15" in problem


def test_a_running_request_keeps_the_adapter_that_it_began_with(
    made: Setup, expected: Expected, tmp_path: Path
) -> None:
    folder = shutil.copytree(made.adapters["all"].lora_path, tmp_path / "swapped")
    one = LoRARequest("swapped", 60, str(folder))
    stream = made.llm.stream([PROMPTS[1]], GREEDY, lora_request=one)
    next(stream)
    shutil.copytree(made.adapters["queries"].lora_path, folder, dirs_exist_ok=True)
    again = LoRARequest("swapped", 60, str(folder), load_inplace=True)
    assert made.llm.add_lora(again)
    new = made.llm.generate([PROMPTS[1]], GREEDY, use_tqdm=False, lora_request=one)
    *_, old = stream
    assert old.outputs[0].token_ids == expected["all"][1].outputs[0].token_ids
    assert new[0].outputs[0].token_ids == expected["queries"][1].outputs[0].token_ids
    made.llm.remove_lora(60)


def test_bad_adapters_are_named_and_the_engine_goes_on(made: Setup, expected: Expected) -> None:
    def refused(request: LoRARequest, match: str) -> None:
        with pytest.raises(RequestError, match=match):
            made.llm.generate(PROMPTS[:1], GREEDY, use_tqdm=False, lora_request=request)

    refused(LoRARequest("gone", 70, "/no/such/folder"), r"gone.*/no/such/folder.*no folder")
    refused(LoRARequest("none", 71), "no lora_path")
    known = made.adapters["all"]
    made.llm.add_lora(known)
    refused(LoRARequest("other", known.lora_int_id, "/elsewhere"), "is the adapter 'all'")
    with pytest.raises(RequestError, match=r"'layers.0.attention.qkv.a' has rank 9"):
        made.llm.add_lora(LoRARequest("x", 72), {"layers.0.attention.qkv.a": np.ones((32, 9))})
    with pytest.raises(RequestError, match=r"'odd.a' fits nothing"):
        made.llm.add_lora(LoRARequest("x", 72), {"odd": {"a": np.ones((32, 4))}})
    with pytest.raises(RequestError, match=r"'layers.0.mlp.down.b' is missing"):
        made.llm.add_lora(LoRARequest("x", 72), {"layers.0.mlp.down.a": np.ones((48, 4))})
    outputs = made.llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=known)
    check(outputs, ["all"] * len(PROMPTS), expected)


def test_an_adapter_that_a_process_lost_fails_its_requests_alone(
    made: Setup, expected: Expected
) -> None:
    llm, loaded = made.llm, made.llm.engine.loaded.adapters
    assert loaded is not None
    llm.add_lora(made.adapters["mlp"])
    llm.reset_prefix_cache()
    for digest in store_of(llm):
        loaded.store.drop(digest)
    loaded._held.clear()
    outputs = made.answer(["mlp", None, "mlp", None])
    ends = [output.outputs[0].finish_reason for output in outputs]
    assert ends == ["error", "length", "error", "length"]
    assert outputs[1].outputs[0].token_ids == expected[None][1].outputs[0].token_ids
    llm.reset_prefix_cache()
    for number in llm.list_loras():
        llm.remove_lora(number)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="max_lora_rank=600"):
        jengine.EngineArgs("demo", enable_lora=True, max_lora_rank=600)
    with pytest.raises(ConfigError, match="max_cpu_loras=1"):
        jengine.EngineArgs("demo", enable_lora=True, max_loras=2, max_cpu_loras=1)
    with pytest.raises(ConfigError, match="lora_int_id=0"):
        LoRARequest("zero", 0)
    with pytest.raises(UnsupportedFeature, match="enable_tower_connector_lora"):
        jengine.EngineArgs("demo", enable_tower_connector_lora=True)


def test_an_engine_without_adapters_refuses_them(made: Setup) -> None:
    with (
        tiny_engine(made.models.base, **PLAIN) as llm,
        pytest.raises(UnsupportedFeature, match="enable_lora"),
    ):
        llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=made.adapters["all"])
