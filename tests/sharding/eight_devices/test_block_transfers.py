"""Blocks pass between engines whose meshes differ: a folder and TCP, either side the larger one."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import random_prompts, tiny_engine

PROMPT = random_prompts(100)[0]
# With 4 devices the two heads of keys and values are copied.
PAIRS = [(1, 2), (2, 1), (4, 1), (1, 4)]
pytestmark = pytest.mark.slow  # three engines each


def run(
    llm: jengine.LLM, tokens: int, said: Any = None
) -> tuple[list[int], np.ndarray, jengine.RequestOutput]:
    """Tokens, their log-probabilities, and the whole output."""
    extra = None if said is None else {"kv_transfer_params": said}
    params = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0, extra_args=extra
    )
    (output,) = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    answer = output.outputs[0]
    return list(answer.token_ids), np.asarray(answer.logprobs_array), output


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def settings(kind: str, place: Path, role: str) -> dict[str, Any]:
    if kind == "folder":
        return {
            "kv_connector": "SharedStorageConnector", "kv_role": "kv_both",
            "kv_connector_extra_config": {"shared_storage_path": str(place)},
        }  # fmt: skip
    extra = {"secret": "a secret of both engines", "timeout_seconds": 60}
    return {
        "kv_connector": "ZmqConnector", "kv_role": role, "kv_port": free_port(),
        "kv_connector_extra_config": extra,
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["folder", "tcp"])
@pytest.mark.parametrize(("producer", "consumer"), PAIRS)
def test_engines_of_other_sizes_use_each_others_blocks(
    folder: Path, tmp_path: Path, kind: str, producer: int, consumer: int
) -> None:
    with tiny_engine(folder, tensor_parallel_size=consumer) as plain:
        tokens, logprobs, _ = run(plain, 8)
    far = settings(kind, tmp_path, "kv_producer")
    with tiny_engine(folder, tensor_parallel_size=producer, kv_transfer_config=far) as first:
        asked = None if kind == "folder" else {"do_remote_decode": True}
        said = run(first, 1, asked)[2].kv_transfer_params
        if kind == "tcp":  # a producer must be there when it is asked
            near = settings(kind, tmp_path, "kv_consumer")
            check(folder, consumer, near, said, tokens, logprobs)
            return
    check(folder, consumer, settings(kind, tmp_path, "kv_both"), None, tokens, logprobs)


def check(
    folder: Path, size: int, far: dict[str, Any], said: Any,
    tokens: list[int], logprobs: np.ndarray,
) -> None:  # fmt: skip
    """An engine that goes on with another one's blocks answers as if it had computed them."""
    with tiny_engine(folder, tensor_parallel_size=size, kv_transfer_config=far) as llm:
        found, own, output = run(llm, 8, said)
    assert output.num_cached_tokens == 96
    assert found == tokens
    np.testing.assert_allclose(own, logprobs, atol=1e-4)
