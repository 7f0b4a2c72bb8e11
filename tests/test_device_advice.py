"""Errors of devices are told once, where they end something, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

import jengine
from jengine import SamplingParams
from jengine.device_advice import KNOWN, ROOM, Doing, advice
from jengine.errors import CapacityError, EngineDead
from jengine.runner.programs.programs import Found
from jengine.runner.sizing import Sizing
from jengine.runner.step.leaves import LeafOrder
from tests.models.tiny_models import write_tiny_native

FULL = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes."
SETTINGS: dict[str, Any] = {"skip_tokenizer_init": True, "max_model_len": 32, "max_num_seqs": 2}


def full(*_: Any, **__: Any) -> Any:
    raise jax.errors.JaxRuntimeError(FULL)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the driver is too old"),
        ("CUDA driver version is insufficient for CUDA runtime version", "the driver is too old"),
        ("the provided PTX was compiled with an unsupported toolchain", "the driver is too old"),
        ("Loaded runtime CuDNN library: 9.1.0 but source was compiled with: 9.8.0",
         "libraries do not match"),
        ("failed to enable peer access from 0 to 1", "devices cannot reach one another"),
        ("NCCL operation ncclCommInitRank failed: unhandled system error",
         "devices cannot reach one another"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "a kernel failed"),
    ],
)  # fmt: skip
def test_errors_are_known_by_their_words(error: str, name: str) -> None:
    (todo,) = (one.todo for one in KNOWN if one.name == name)
    assert {advice(f"INTERNAL: {error}", doing) for doing in Doing} == {todo}


def test_room_is_made_where_it_is_missing() -> None:
    assert [advice(FULL, doing) for doing in Doing] == [ROOM[doing] for doing in Doing]
    assert len(set(ROOM.values())) == len(Doing)
    assert "outside of JAX's pool" in advice(f"{FULL} Failed to instantiate CUDA graph", Doing.STEP)
    assert advice("INVALID_ARGUMENT: shapes differ", Doing.STEP) == ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(tmp_path_factory.mktemp("model"), "llama", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("owner", "name", "made", "message"),
    [
        (LeafOrder, "leaves", full, r"placing the weights failed: .*quantization='int4'"),
        (jax.stages.Lowered, "compile", full,
         r"compiling a program failed: .*RESOURCE_EXHAUSTED.*lower max_num_batched_tokens"),
        (Sizing, "state_maker", lambda *_: full,
         r"making the KV cache failed: .*kv_cache_memory_bytes"),
    ],
)  # fmt: skip
def test_a_start_without_room_says_which_setting_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, made: Any, message: str
) -> None:
    monkeypatch.setattr(owner, name, made)
    with pytest.raises(CapacityError, match=message):
        jengine.LLM(folder, **SETTINGS)


def test_a_step_without_room_says_so_to_every_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jengine.LLM(folder, **SETTINGS) as llm:
        monkeypatch.setattr(Found, "queue", full)
        with pytest.raises(EngineDead, match=r"a step failed: .*Lower gpu_memory_utilization"):
            llm.generate([[5, 6], [7]], SamplingParams(max_tokens=2))
