"""Blocks pass between engines whose meshes differ: a folder and TCP, either side the larger one.
In pipelines they leave the stages and come back with the same bits."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from tests.api.engines import random_prompts, tiny_engine
from tests.api.test_kv_offloading import KINDS, answers, transfers, twice
from tests.models.tiny_models import write_tiny_native

PROMPT = random_prompts(100)[0]
# Devices of a stage and stages. With 4 devices the two heads of keys and values are copied.
PAIRS = [((1, 1), (2, 1)), ((2, 1), (1, 1)), ((4, 1), (1, 1)), ((1, 1), (4, 1)),
         ((1, 2), (1, 1)), ((2, 1), (1, 2)), ((2, 2), (1, 2))]  # fmt: skip
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
    folder: Path, tmp_path: Path, kind: str, producer: tuple[int, int], consumer: tuple[int, int]
) -> None:
    with tiny_engine(folder, **meshed(consumer)) as plain:
        tokens, logprobs, _ = run(plain, 8)
    far = settings(kind, tmp_path, "kv_producer")
    with tiny_engine(folder, **meshed(producer), kv_transfer_config=far) as first:
        asked = None if kind == "folder" else {"do_remote_decode": True}
        said = run(first, 1, asked)[2].kv_transfer_params
        if kind == "tcp":  # a producer must be there when it is asked
            near = settings(kind, tmp_path, "kv_consumer")
            check(folder, consumer, near, said, tokens, logprobs)
            return
    check(folder, consumer, settings(kind, tmp_path, "kv_both"), None, tokens, logprobs)


def meshed(sizes: tuple[int, int]) -> dict[str, int]:
    return {"tensor_parallel_size": sizes[0], "pipeline_parallel_size": sizes[1]}


def check(
    folder: Path, sizes: tuple[int, int], far: dict[str, Any], said: Any,
    tokens: list[int], logprobs: np.ndarray,
) -> None:  # fmt: skip
    """An engine that goes on with another one's blocks answers as if it had computed them."""
    with tiny_engine(folder, **meshed(sizes), kv_transfer_config=far) as llm:
        found, own, output = run(llm, 8, said)
    assert output.num_cached_tokens == 96
    assert found == tokens
    np.testing.assert_allclose(own, logprobs, atol=1e-4)


SMALL = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 18}
LAYERS = {"even": 2, "uneven": 3}


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("sizes", [(1, 2), (2, 2)], ids=str)
def test_blocks_of_stages_come_back(tmp_path: Path, layers: str, sizes: tuple[int, int]) -> None:
    """One request after the other, and several at once, which are preempted as well."""
    model = write_tiny_native(
        tmp_path, "llama", vocab_size=128, num_hidden_layers=LAYERS[layers],
        max_position_embeddings=1024,
    )  # fmt: skip
    prompts = random_prompts(100, 70, 110, 90)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    found = []
    for outside in ({}, {"kv_offloading_size": 0.01}):
        with tiny_engine(model, **meshed(sizes), **SMALL, **outside) as llm:
            made, cached = answers(llm, prompts + prompts)
            together = [{"prompt_token_ids": prompt} for prompt in prompts]
            outputs = llm.generate(together, params, use_tqdm=False)
            found.append((made, [output.outputs[0].token_ids for output in outputs]))
            assert llm.stats().preemptions > 0
            if outside:
                assert cached == [0] * 4 + [96, 64, 96, 80]
                assert transfers(llm).loaded >= 20
    assert found[0] == found[1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cache_comes_back_to_the_stages(kind: str, tmp_path: Path) -> None:
    family, config, own = KINDS[kind]
    model = write_tiny_native(tmp_path, family, max_position_embeddings=1024, **config)
    prompts, found = random_prompts(*[150] * 24), []
    # Beside a cache that holds everything, as hits round otherwise than misses with some kinds.
    for outside in (
        {"num_gpu_blocks_override": 400},
        {"num_gpu_blocks_override": 60, "kv_offloading_size": 0.05},
    ):
        with tiny_engine(model, **meshed((1, 2)), **{**SMALL, **own, **outside}) as llm:
            made, cached = answers(llm, twice(prompts))
            found.append(made)
            if "kv_offloading_size" in outside:
                assert min(cached[24:28]) >= 128
                assert transfers(llm).loaded > 0
    assert found[0] == found[1]


def test_uneven_stages_share_with_their_like(tmp_path: Path) -> None:
    """Two stages of three layers: one has a layer that is none, and so have its blocks."""
    model = write_tiny_native(
        tmp_path / "model", "llama", vocab_size=128, num_hidden_layers=3,
        max_position_embeddings=1024,
    )  # fmt: skip
    far = settings("folder", tmp_path / "far", "kv_both")
    with tiny_engine(model, **meshed((1, 2)), kv_transfer_config=far) as llm:
        tokens, logprobs, _ = run(llm, 8)
    check(model, (2, 2), far, None, tokens, logprobs)
    with tiny_engine(model, kv_transfer_config=far) as llm:
        found, _, output = run(llm, 8)
    assert output.num_cached_tokens == 0 and found == tokens
