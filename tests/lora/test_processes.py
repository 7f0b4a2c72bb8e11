"""Adapters where steps run in other processes: on several hosts, on Ray, and in replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.api.engines import tiny_engine
from tests.executor.test_ray import said as said_by_ray
from tests.lora.engines import SETTINGS, turns, write_models, written_adapters
from tests.multihost.test_multihost import said as said_by_hosts

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {**SETTINGS, "max_model_len": 256}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("adapters")).base


@pytest.fixture(scope="module")
def on_one(base: Path) -> list[Any]:
    """What one process says, whose answers tests/lora compares with merged models."""
    with tiny_engine(base, **SMALL) as llm:
        found = turns(llm, written_adapters(base.parent))
    assert found[:2] == [True, True]
    different = {str(tokens) for answers in found[2:] for tokens in answers}
    assert len(different) > 6, "adapters make a difference"
    return found


def test_processes_of_several_hosts_answer_as_one(base: Path, on_one: list[Any]) -> None:
    assert said_by_hosts("adapting", base)["found"] == on_one


def test_workers_on_ray_answer_as_one_process(base: Path, on_one: list[Any]) -> None:
    pytest.importorskip("ray")
    [found] = said_by_ray("adapting", base)
    assert found["found"] == on_one


def test_replicas_in_processes_answer_as_one(base: Path, on_one: list[Any]) -> None:
    settings = {**SMALL, "data_parallel_size": 2, "data_parallel_backend": "process"}
    with tiny_engine(base, **settings, multiprocess=True) as llm:
        assert turns(llm, written_adapters(base.parent)) == on_one
