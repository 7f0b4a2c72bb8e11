"""jengine on a real Ray Serve, which is an extra: OpenAI's client, adapters, failures, scaling.

In programs of their own, which start a cluster and end it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jengine import LLM
from jengine.adapters import LoRARequest
from jengine.bench.marathon.server import free_port
from jengine.errors import JengineError
from tests.integrations.test_ray_data import driver_said
from tests.media.test_audio import wav
from tests.media.tiny_whisper import sound
from tests.server.test_audio import said as heard_by_transformers
from tests.server.test_audio import write_ear

pytestmark = pytest.mark.slow
KV_AWARE = {
    "request_router_class": "ray.llm._internal.serve.routing_policies.kv_aware.kv_aware_router:"
    "KVAwareRouter"
}
CHAT: Any = [{"role": "user", "content": "What is 23 + 45?"}]


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"engine_kwargs": {"port": 80}}, "port cannot be set"),
        ({"engine_kwargs": {"max_model_length": 5}}, "max_model_len"),
        ({"engine_kwargs": {"max_n": "many"}}, "max_n"),
        ({"experimental_configs": {"stream_batching_interval_ms": 50}}, "stream_batching"),
        ({"callback_config": {"callback_class": "a.B"}}, "callback"),
        ({"server_cls": dict}, "server_cls"),
        ({"deployment_config": {"request_router_config": KV_AWARE}}, "KVAwareRouter"),
    ],
)
def test_settings_that_no_replica_could_have_are_refused(more: Any, error: str) -> None:
    serve = pytest.importorskip("jengine.integrations.ray_serve")
    config = {"model_loading_config": {"model_id": "demo"}, **more}
    with pytest.raises((JengineError, TypeError), match=error):
        serve.deployment_of(serve.config_of(config))


def said(scenario: str, folder: Path) -> dict[str, Any]:
    """What a driver says in a scenario."""
    return driver_said("ray_serve_program", scenario, str(folder), str(free_port()))


def test_answers_are_those_of_an_engine(tmp_path: Path) -> None:
    (tmp_path / "it.wav").write_bytes(wav(sound(0.9, 440), 16000, 4))
    ear = write_ear(tmp_path / "ear")
    found = said("answered", tmp_path)
    assert found["models"] == ["demo", "words", "ear"] and found["model"] == "words"
    with LLM(
        "demo", enable_lora=True, max_model_len=512, max_num_seqs=8, max_num_batched_tokens=256,
        enforce_eager=True,
    ) as llm:  # fmt: skip
        params = llm.get_default_sampling_params().clone(temperature=0.0, max_tokens=12)
        (own,) = llm.chat(CHAT, params)
        shout = LoRARequest("shout", 1, str(tmp_path / "shout"))
        (adapted,) = llm.chat(CHAT, params, lora_request=shout)
    assert found["text"] == found["streamed"] == found["after"] == own.outputs[0].text
    assert found["adapted"] == adapted.outputs[0].text != found["text"]
    assert found["usage"][0] == found["usage"][1] and found["completion"] == 4
    first, second = found["embedded"]
    assert first == second > 16
    assert found["scores"][0] == pytest.approx(1, abs=1e-3) and found["scores"][1] < 0.999
    assert found["heard"] == heard_by_transformers(ear, "<|transcribe|>", 6)
    assert found["refused"] == [404, 400, 404, 400, 404, 404]
    assert (found["asleep"], found["awake"]) == ([True], [False])


def test_requests_of_clients_that_left_end_and_a_dead_engine_is_replaced(tmp_path: Path) -> None:
    assert said("replaced", tmp_path)["first"] == 200


def test_prompts_go_where_their_beginning_is_cached(tmp_path: Path) -> None:
    cached = said("prefixed", tmp_path)["cached"]
    assert not any(cached[:4]) and all(cached[4:])


def test_prompts_are_computed_apart_and_nobody_notices_when_that_ends(tmp_path: Path) -> None:
    found = said("apart", tmp_path)
    assert found["killed"] == 2 and found["refused"] == 400
    with LLM(
        "demo", max_model_len=512, max_num_seqs=8, max_num_batched_tokens=256, enforce_eager=True
    ) as llm:
        params = llm.get_default_sampling_params().clone(temperature=0.0, max_tokens=12)
        long = params.clone(max_tokens=200, ignore_eos=True)
        own = [
            llm.chat(chat, long if number == 5 else params)[0].outputs[0].text
            for number, chat in enumerate(found["prompts"])
        ]
    heard = [*found["texts"], found["streamed"], found["bystander"], found["without"]]
    assert heard == own
    # All blocks but the one of the last tokens came from the replica that computed the prompt.
    for cached, tokens in zip(found["cached"], found["tokens"], strict=True):
        assert tokens - 32 < cached < tokens
    assert found["cached_without"] == 0


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({}, "prefill_config: kv_transfer_config with kv_role=None"),
        ({"kv_role": "kv_consumer"}, "prefill_config: .* role that saves"),
        ({"kv_role": "kv_producer"}, "decode_config: .* role that loads"),
        ({"model_id": "other"}, "expected the same"),
        ({"left_out": True}, "decode_config: missing"),
    ],
    ids=str,
)
def test_halves_that_do_not_fit_are_refused(more: Any, error: str) -> None:
    serve = pytest.importorskip("jengine.integrations.ray_serve")
    transfer = {
        "kv_connector": "ExampleConnector", "kv_role": more.get("kv_role"),
        "kv_connector_extra_config": {"shared_storage_path": "/tmp/blocks"},
    }  # fmt: skip
    kwargs = {"kv_transfer_config": transfer} if "kv_role" in more else {}
    halves = {
        "prefill_config": {"model_loading_config": {"model_id": "demo"}, "engine_kwargs": kwargs},
        "decode_config": {
            "model_loading_config": {"model_id": more.get("model_id", "demo")},
            "engine_kwargs": kwargs,
        },
    }
    if "left_out" in more:
        del halves["decode_config"]
    with pytest.raises(JengineError, match=error):
        serve.build_pd_openai_app(halves)


def test_scaling_loses_no_request(tmp_path: Path) -> None:
    found = said("scaled", tmp_path)
    assert found["counts"] == [1, 3, 1]
    # Each of 15 clients has one at least; how many more depends on how soon replicas come.
    assert len(found["answers"]) >= 15 and set(found["answers"]) == {"40 length"}
