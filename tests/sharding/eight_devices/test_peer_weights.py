"""Weights travel between engines that are divided in different ways."""

from __future__ import annotations

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jengine
from jengine.assembly.peer_weights import on_host
from tests.api.engines import answers, random_prompts, tiny_engine
from tests.connectors.test_peers import free_port
from tests.models.tiny_models import write_tiny_native

SECRET = "a secret of 16 bytes or more"
PARAMS = jengine.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)


@pytest.mark.parametrize(("served", "taken"), [(2, 1), (1, 2), (4, 2)])
def test_an_engine_starts_from_one_with_other_devices(
    tmp_path: Path, served: int, taken: int
) -> None:
    full = write_tiny_native(tmp_path / "full", "llama", num_key_value_heads=4)
    bare = tmp_path / "bare"
    shutil.copytree(full, bare, ignore=shutil.ignore_patterns("*.safetensors*"))
    where, prompts = f"127.0.0.1:{free_port()}", random_prompts(20, 33)
    serve = {"serve": where, "secret": SECRET}
    take = {"peer": where, "secret": SECRET}
    with (
        tiny_engine(
            full, max_model_len=128, tensor_parallel_size=served, model_loader_extra_config=serve
        ) as runs,
        tiny_engine(
            bare, max_model_len=128, tensor_parallel_size=taken, load_format="peer",
            model_loader_extra_config=take,
        ) as starts,
    ):  # fmt: skip
        assert answers(starts.generate(prompts, PARAMS)) == answers(runs.generate(prompts, PARAMS))


def test_an_array_that_is_read_keeps_no_copy_on_the_host() -> None:
    """JAX's arrays of several devices keep what they were asked for."""
    mesh = jax.make_mesh((4,), ("model",))
    array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("model")))
    np.testing.assert_array_equal(on_host(array), np.arange(8.0))
    assert array._npy_value is None
    np.asarray(array)
    assert array._npy_value is not None
