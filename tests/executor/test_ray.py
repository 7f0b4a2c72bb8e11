"""A real local Ray with two workers on the CPU: the same tokens, a lost worker named, nothing left.

In processes of their own, because a driver must not have a device. Needs ray, which is an extra.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine.errors import ConfigError
from jengine.executor.ray.options import RayOptions
from tests.api.engines import answers, tiny_engine
from tests.models.tiny_models import write_tiny_native

ROOT = Path(__file__).parent.parent.parent
# A worker that is killed is known at once, by its connection; one that is only slow, never.
NAMED_WITHIN = 10


def said(scenario: str, folder: Path) -> list[dict[str, Any]]:
    """What a driver says in a scenario."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.executor.ray_program", scenario, str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "JAX_PLATFORMS": "nowhere",
            "PYTHONPATH": str(ROOT),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_native(
        tmp_path_factory.mktemp("ray"), "llama", max_position_embeddings=1024, vocab_size=128
    )


@pytest.mark.slow
def test_same_tokens_as_one_process_and_nothing_left(folder: Path) -> None:
    pytest.importorskip("ray")
    from tests.executor.ray_program import PARAMS, PROMPTS

    found, after, refused = said("same", folder)
    with tiny_engine(folder, max_model_len=256) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    assert found["tokens"] == found["again"] == expected
    assert found["logprobs"]
    assert found["hits"] > 0
    assert found["programs"] >= 2
    assert found["ranks"] == [0, 1]
    assert found["devices"] == [1, 1]
    assert after == {"left": [], "alive": []}
    assert "max_model_len=5000 is beyond the 1024 positions" in refused["model"]
    assert "Ray has no room for 2 workers with {'CPU': 1.5} each" in refused["room"]
    assert "worker 0 (" in refused["platform"]
    assert "nowhere" in refused["platform"]
    assert "not ready within 3 s" in refused["slow"]
    assert refused["before"] == refused["left"] == []


@pytest.mark.slow
def test_a_lost_worker_is_named_and_nothing_is_left(folder: Path) -> None:
    pytest.importorskip("ray")
    follower, after_follower, first, after_first = said("killed", folder)
    assert f"process 1 on {socket.gethostname()} was lost" in follower["error"]
    assert "process 0 was lost" in first["error"]
    for found in (follower, first):
        assert "Workers were process 0:" in found["error"]
        assert found["seconds"] < NAMED_WITHIN
        print(f"{found['error']}: after {found['seconds']:.2f} s")
    assert after_follower == after_first == {"left": [], "alive": []}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"worker": 2}, "no key 'worker' for Ray.*Did you mean 'workers'"),
        ({"workers": 0}, "'workers'.=0: expected a number of processes"),
        ({"workers": True}, "expected a number of processes"),
        ({"cpus": "2"}, "'cpus'.='2': expected a number above 0"),
        ({"environment": {"A": 1}}, "expected a dict of texts"),
        ({"address": 5}, "expected an address"),
        ({"start": -1}, "expected a number of seconds"),
    ],
)
def test_options_are_checked(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayOptions.checked(given)


@pytest.mark.parametrize(
    ("given", "nodes", "tensor", "expected"),
    [
        ({}, [8, 8], None, (2, 8)),  # all of all hosts
        ({}, [8, 8, 0], None, (2, 8)),  # a head without GPUs takes no part
        ({}, [8, 8], 8, (1, 8)),
        ({}, [8, 8], 16, (2, 8)),
        ({}, [8, 8], 4, (1, 4)),
        ({}, [4, 4, 4], 6, (2, 3)),
        ({"workers": 4}, [8, 8], 8, (4, 2)),
        ({"gpus": 2}, [8, 8], 8, (4, 2)),
        ({}, [0, 0], None, (2, 0)),  # CPUs: a worker a host
        ({"workers": 3}, [0], None, (3, 0)),
    ],
)
def test_how_many_workers(
    given: dict[str, Any], nodes: list[int], tensor: int | None, expected: tuple[int, int]
) -> None:
    assert RayOptions.checked(given).shape(nodes, tensor) == expected


def test_devices_that_hosts_cannot_share_evenly() -> None:
    with pytest.raises(ConfigError, match="9 devices on 2 hosts of 8 GPUs"):
        RayOptions().shape([8, 8], 9)
