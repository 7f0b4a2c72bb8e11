"""Weights that a step takes packed: one copy in memory, packed again in place, undone to the bit,
and none of it with pack_weights=False."""

from __future__ import annotations

import argparse
import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jengine import LLM, SamplingParams
from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError
from jengine.models.decoder import Decoder
from jengine.models.parameter import named_parameters
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from jengine.weights.safetensors_io import save_pretrained
from pallas_kernels.choice import cpu_problem
from tests.models.tiny_models import FAMILIES, tiny_settings

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "show_progress": False,
    "compilation_config": {"decode_rows": [2], "prefill_tokens": [64], "variants": ["scored"]},
}
SCORED = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=1)
PROMPT = [5, 6, 7, 8] * 6


def build(family: str, seed: int) -> Decoder:
    """A tiny model with weights of its own, whose sizes fill no panel."""
    hf = {"architectures": [FAMILIES[family]], **tiny_settings(family)}
    return dummy_model(model_config(hf), seed=seed)


@pytest.fixture(scope="module")
def models() -> list[Decoder]:
    return [build("qwen3", seed) for seed in range(2)]


@pytest.fixture
def llm(models: list[Decoder]) -> Iterator[LLM]:
    with LLM(models[0], **SETTINGS) as engine:
        yield engine


def arrays(model: Decoder) -> dict[str, jax.Array]:
    return {path: parameter[...] for path, parameter in named_parameters(model)}


def packed(llm: LLM) -> dict[str, jax.Array]:
    """The leaves that are packed weights, which have one more dimension than any other."""
    names = llm.engine.loaded.order.names
    leaves = zip(names, llm.engine.loaded.leaves, strict=True)
    return {name: leaf for name, leaf in leaves if name in llm.engine.order.copied}


def pointers(found: dict[str, jax.Array]) -> dict[str, int]:
    return {name: array.unsafe_buffer_pointer() for name, array in found.items()}


def answer(llm: LLM) -> list[Any]:
    """The tokens with their log-probabilities, to the bit."""
    [output] = llm.generate([PROMPT], SCORED)
    steps = output.outputs[0].logprobs
    return [[(token, one.logprob) for token, one in step.items()] for step in steps]


def bytes_alive() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


@pytest.mark.slow
def test_new_parameters_are_packed_where_the_old_ones_were(llm: LLM, models: list[Decoder]) -> None:
    llm.update_params(models[1])
    llm.update_params(models[0])
    old, before = packed(llm), pointers(packed(llm))
    assert len(before) > 8
    alive = bytes_alive()
    assert llm.update_params(models[1]) == 3
    assert pointers(packed(llm)) == before
    assert all(array.is_deleted() for array in old.values())
    assert bytes_alive() == alive
    restored = llm.engine.loaded.parameters()
    for path, array in arrays(models[1]).items():
        np.testing.assert_array_equal(restored[path], array)
    with LLM(models[1], **SETTINGS) as other:
        assert answer(llm) == answer(other)


def test_steps_in_flight_finish_with_the_weights_that_they_were_given(
    llm: LLM, models: list[Decoder]
) -> None:
    stream = llm.stream([PROMPT], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    next(stream)
    for number in range(1, 5):
        llm.update_params(models[number % 2], on_inflight="continue")
        next(stream)
    assert len(list(stream)[-1].outputs[0].token_ids) == 30
    fresh = answer(llm)
    llm.reset_prefix_cache()
    llm.update_params(models[0])
    assert answer(llm) == fresh, "the same weights again"


def test_donated_arrays_go_where_they_were_packed(llm: LLM) -> None:
    given = arrays(build("qwen3", 2))
    llm.update_params(given, donate=True)
    copied = llm.engine.order.copied
    assert "layers.0.mlp.down.weight" in copied and "norm.weight" not in copied
    assert {path for path, array in given.items() if array.is_deleted()} == copied


@pytest.mark.parametrize(
    "family",
    ["qwen3", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemma2", "mixtral"))],
)
def test_unpacked_weights_are_the_users_own_arrays_and_give_the_same_bits(family: str) -> None:
    model = build(family, 3)
    with LLM(model, **SETTINGS) as one, LLM(model, **SETTINGS, pack_weights=False) as other:
        assert one.engine.order.copied and not other.engine.order.copied
        leaves = dict(zip(other.engine.loaded.order.names, other.engine.loaded.leaves, strict=True))
        assert pointers(leaves) == pointers(arrays(model))
        assert answer(one) == answer(other)
        new = build(family, 4)
        other.update_params(new)
        leaves = dict(zip(other.engine.loaded.order.names, other.engine.loaded.leaves, strict=True))
        assert pointers(leaves) == pointers(arrays(new))
        one.update_params(new)
        assert answer(one) == answer(other)


def test_only_the_packed_form_of_a_loaded_model_stays_in_memory(
    models: list[Decoder], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    save_pretrained(models[0], tmp_path)
    before = bytes_alive()
    with LLM(tmp_path, **SETTINGS) as llm:
        state = sum(array.nbytes for array in jax.tree.leaves(llm.engine.loaded.state))
        weights = sum(array.nbytes for array in llm.engine.loaded.leaves)
        assert bytes_alive() - before <= state + weights + 4096  # constants of the step
        copies = sum(array.nbytes for array in packed(llm).values())
        # Panels of 32 columns: what small outputs are padded to is counted.
        assert copies > sum(arrays(models[0])[path].nbytes for path in llm.engine.order.copied)
        assert f"packed for the CPU kernels: {copies / 1e9:.2f} GB" in caplog.text
        assert llm.memory().parts[0].bytes == weights
        llm.save(tmp_path / "saved")
    with LLM(tmp_path / "saved", **SETTINGS, pack_weights=False) as again:
        for path, array in again.engine.loaded.parameters().items():
            np.testing.assert_array_equal(array, arrays(models[0])[path])


def test_the_copy_of_live_weights_is_mentioned(
    models: list[Decoder], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    LLM(models[0], **SETTINGS).shutdown()
    assert "beside the given arrays; pack_weights=False" in caplog.text
    caplog.clear()
    LLM(models[0], **SETTINGS, pack_weights=False).shutdown()
    assert "packed" not in caplog.text


def test_the_setting_is_checked_and_has_a_flag() -> None:
    assert EngineArgs("demo").pack_weights == "auto"
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    given = parser.parse_args(["--model", "demo", "--pack-weights", "false"])
    assert EngineArgs.from_cli_args(given).pack_weights is False
    with pytest.raises(ConfigError, match="pack_weights='always'"):
        EngineArgs("demo", pack_weights="always")  # type: ignore[arg-type]
