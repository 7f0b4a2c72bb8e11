"""Tests that need eight devices, whose number is fixed when JAX starts:

XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest -n auto tests/sharding/eight_devices
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import pytest

import jengine
from jengine.models import registry
from jengine.models.language_model import LanguageModel
from jengine.weights.safetensors_io import save_pretrained
from tests.api.engines import tiny_engine
from tests.models.parallel_family import ParallelFamily, model_of
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import run

if jax.device_count() < 8:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with two heads of keys and values, so that 4 and 8 devices hold copies of them."""
    return write_tiny_native(
        tmp_path_factory.mktemp("llama"), "llama", max_position_embeddings=1024, vocab_size=128
    )


@pytest.fixture(scope="session")
def on_one(folder: Path) -> list[Any]:
    """What that model answers on one device."""
    with tiny_engine(folder) as llm:
        return run(llm)


@pytest.fixture
def own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LanguageModel:
    """A model of a family of our own, which is saved in `tmp_path`."""
    monkeypatch.setattr(registry, "_REGISTERED", {})
    jengine.register_model(ParallelFamily())
    model = model_of(1)
    save_pretrained(model, tmp_path)
    return model
