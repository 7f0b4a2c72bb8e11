"""Tests that need eight devices, whose number is fixed when JAX starts:

XLA_FLAGS=--xla_force_host_platform_device_count=8 pytest -n auto tests/sharding/eight_devices
"""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from tests.models.tiny_models import write_tiny_native

if jax.device_count() < 8:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with two heads of keys and values, so that 4 and 8 devices hold copies of them."""
    return write_tiny_native(
        tmp_path_factory.mktemp("llama"), "llama", max_position_embeddings=1024, vocab_size=128
    )
