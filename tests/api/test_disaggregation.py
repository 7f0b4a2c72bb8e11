"""One engine computes prompts, another goes on with their blocks; without the first it computes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import SMALL_DEMO, random_prompts

PROMPTS = random_prompts(100, 70)
pytestmark = pytest.mark.slow  # three engines


def config(role: str, port: int) -> dict[str, Any]:
    extra = {"secret": "a secret of both engines", "timeout_seconds": 2}
    return {
        "kv_connector": "ZmqConnector", "kv_role": role, "kv_port": port,
        "kv_connector_extra_config": extra,
    }  # fmt: skip


@pytest.fixture(scope="module")
def ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


@pytest.fixture(scope="module")
def decoder(ports: tuple[int, int]) -> Iterator[jengine.LLM]:
    with jengine.LLM(
        "demo", **SMALL_DEMO, kv_transfer_config=config("kv_consumer", ports[1])
    ) as llm:
        yield llm


def run(
    llm: jengine.LLM, prompt: list[int], tokens: int, said: Any = None
) -> jengine.RequestOutput:
    extra = None if said is None else {"kv_transfer_params": said}
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, extra_args=extra)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    return output


def test_a_decoder_goes_on_where_a_prefiller_ended(
    decoder: jengine.LLM, ports: tuple[int, int]
) -> None:
    with jengine.LLM("demo", **SMALL_DEMO) as plain:
        truth = [run(plain, prompt, 8).outputs[0].token_ids for prompt in PROMPTS]
    with jengine.LLM(
        "demo", **SMALL_DEMO, kv_transfer_config=config("kv_producer", ports[0])
    ) as prefiller:
        first = run(prefiller, PROMPTS[0], 1, {"do_remote_decode": True})
        said = first.kv_transfer_params
        assert said is not None and said["remote_port"] == ports[0]
        output = run(decoder, PROMPTS[0], 8, said)
        assert output.outputs[0].token_ids == truth[0]
        assert output.num_cached_tokens == 96
        assert output.kv_transfer_params is None
    # The prefiller has gone: what it said leads nowhere.
    output = run(decoder, PROMPTS[1], 8, said)
    assert output.outputs[0].token_ids == truth[1]
    assert output.num_cached_tokens == 0
