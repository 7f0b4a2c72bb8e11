"""How much of an accelerator's memory JAX and the engine take, without an accelerator."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jengine.errors import ConfigError
from jengine.runner.memory import driver_memory, memory_pool
from jengine.runner.memory.cache_size import available_on_each
from jengine.runner.memory.memory_pool import (
    HOST_SHARE,
    available_bytes,
    available_piece,
    free_bytes,
    pool_share,
)
from tests.models.tiny_models import write_tiny_native

GB = 10**9
TOTAL = 85 * GB
# A program, and what JAX was told when it started a device.
START = """
import os
from jax._src import xla_bridge
start = xla_bridge._init_backend
def spy(platform):
    print("started with", os.environ.get("XLA_CLIENT_MEM_FRACTION"))
    return start(platform)
xla_bridge._init_backend = spy
PROGRAM
print("left", os.environ.get("XLA_CLIENT_MEM_FRACTION"))
"""


class Device:
    """A device that reports this about its memory."""

    def __init__(self, stats: dict[str, int] | None, platform: str = "gpu") -> None:
        self.stats = stats
        self.platform = platform
        self.local_hardware_id = 2

    def memory_stats(self) -> dict[str, int] | None:
        return self.stats


def gpu(pool: float, in_use: int = 0) -> Any:
    """A GPU of 85 GB whose pool was given this share of it."""
    return Device({"bytes_limit": int(TOTAL * pool), "bytes_in_use": in_use})


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in memory_pool.POOL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(memory_pool, "STARTED_WITH", [])


def test_a_pool_that_the_engine_has_sized_gives_the_share_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory_pool, "STARTED_WITH", [pool_share(0.92)])
    free = available_bytes(gpu(pool_share(0.92), in_use=16 * GB), 0.92)
    assert free == pytest.approx(0.92 * TOTAL - 16 * GB, rel=1e-3)
    assert not caplog.records


def test_a_pool_that_was_there_before_limits_the_engine_which_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    free = available_bytes(gpu(0.75, in_use=16 * GB), 0.92)
    # Nearly all of the pool, where a share of a share was taken before: 0.69 of the device.
    assert 0.72 * TOTAL - 16 * GB < free < 0.75 * TOTAL - 16 * GB
    assert "XLA_CLIENT_MEM_FRACTION=0.95 before the program first uses JAX" in caplog.text


def test_a_small_share_is_of_the_device_not_of_the_pool() -> None:
    assert available_bytes(gpu(0.75), 0.4) == pytest.approx(0.4 * TOTAL, rel=1e-3)


def test_a_pool_that_the_user_has_chosen_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    with caplog.at_level(logging.INFO):
        free = available_bytes(gpu(0.5, in_use=GB), 0.92)
    assert 0.48 * TOTAL - GB < free < 0.5 * TOTAL
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_what_the_program_holds_already_is_not_available() -> None:
    assert available_bytes(gpu(0.75), 0.5) - available_bytes(gpu(0.75, 7 * GB), 0.5) == 7 * GB


def test_a_cache_is_no_larger_than_the_largest_free_piece(caplog: pytest.LogCaptureFixture) -> None:
    hole: Any = Device(
        {"bytes_limit": 60 * GB, "bytes_in_use": 16 * GB, "largest_free_block_bytes": 30 * GB,
         "pool_bytes": 60 * GB}
    )  # fmt: skip
    assert available_on_each([hole], 0.75) == free_bytes(hole) == 30 * GB
    assert "largest free piece is 30.00 GB" in caplog.text
    # What the pool has not reserved yet is a piece as well.
    hole.stats["pool_bytes"] = 20 * GB
    assert free_bytes(hole) == 40 * GB


def test_a_pool_in_one_piece_is_used_as_before(caplog: pytest.LogCaptureFixture) -> None:
    whole: Any = Device({"bytes_limit": 60 * GB, "bytes_in_use": 16 * GB,
                         "largest_free_block_bytes": 44 * GB})  # fmt: skip
    silent: Any = Device({"bytes_limit": 60 * GB, "bytes_in_use": 16 * GB})
    assert available_piece(whole, 0.6) == available_piece(silent, 0.6)
    assert available_piece(whole, 0.6) == available_bytes(whole, 0.6)
    # Nothing is allocated yet.
    new: Any = Device({"bytes_limit": 60 * GB, "largest_free_block_bytes": 0, "pool_bytes": 0})
    assert free_bytes(new) == 60 * GB
    assert not caplog.records


def test_the_pool_leaves_room_outside_and_is_never_smaller_than_jaxs() -> None:
    assert pool_share(0.92) == pytest.approx(0.9485, abs=1e-3)
    assert pool_share(0.2) == 0.75 and pool_share(0.94) == 0.95 and pool_share(1.0) == 1.0


def test_an_accelerator_that_says_nothing_is_not_sized_by_the_hosts_memory() -> None:
    device: Any = Device(None)
    with pytest.raises(ConfigError, match=r"ALLOCATOR=platform.*kv_cache_memory_bytes"):
        available_bytes(device, 0.9)


@pytest.mark.parametrize("failing", [None, "cuInit", "cuCtxPushCurrent_v2", "cuMemGetInfo_v2"])
def test_a_device_whose_allocator_says_nothing_is_asked_through_its_driver(
    failing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with XLA's allocator of fixed addresses. The context is given back in any case."""
    seen: list[str] = []

    def answers(name: str, *arguments: Any) -> int:
        seen.append(name)
        if name == "cuDeviceGet":
            assert arguments[1] == 2, "the device's number in this process"
        if name == "cuMemGetInfo_v2":
            arguments[0]._obj.value, arguments[1]._obj.value = TOTAL - 3 * GB, TOTAL
        return int(name == failing)

    class Cuda:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: answers(name, *arguments)

    monkeypatch.setattr(driver_memory.ctypes, "CDLL", lambda _: Cuda())
    monkeypatch.setattr(memory_pool, "STARTED_WITH", [0.95])
    device: Any = Device(None)
    if failing is None:
        assert available_bytes(device, 0.9) == int(0.9 * TOTAL) - 3 * GB
        assert available_piece(device, 0.9) == available_bytes(device, 0.9)
    else:
        with pytest.raises(ConfigError, match="and neither does its driver"):
            available_bytes(device, 0.9)
    counted = [sum(name.startswith(f"cuDevicePrimaryCtx{one}") for name in seen)
               for one in ("Retain", "Release")]  # fmt: skip
    assert counted[0] == counted[1]


def test_a_cpu_shares_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 1000

    monkeypatch.setattr("psutil.virtual_memory", Memory)
    device: Any = Device(None, "cpu")
    assert available_bytes(device, 0.9) == int(1000 * HOST_SHARE)
    assert available_on_each([device, device], 0.9) == int(1000 * HOST_SHARE) // 2


def test_replicas_have_what_the_fullest_device_has_left() -> None:
    devices = [gpu(0.75, used * GB) for used in (3, 30, 0)]
    assert available_on_each(devices, 0.5) == available_bytes(devices[1], 0.5)


def started(program: str, **environment: str) -> list[str]:
    """What JAX was told when this program started its devices."""
    names = (*memory_pool.POOL_VARIABLES, "JAX_PLATFORMS")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", START.replace("PROGRAM", program)],
        env={**kept, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("started", "left"))]


@pytest.mark.slow
def test_an_engine_starts_jax_with_a_pool_for_its_share(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "llama", num_hidden_layers=1, hidden_size=16)
    settings = "skip_tokenizer_init=True, max_num_seqs=2, enforce_eager=True"
    lines = started(f"import jengine; jengine.LLM({str(folder)!r}, {settings})")
    assert lines[0] == "started with 0.9485" and lines[-1] == "left None"


@pytest.mark.slow
def test_a_pool_that_was_chosen_or_is_there_is_left_alone() -> None:
    claim = "from jengine.runner.memory.memory_pool import start_devices; start_devices(0.92)"
    chosen = started(f"{claim}; import jax; jax.devices()", XLA_CLIENT_MEM_FRACTION="0.5")
    assert set(chosen) == {"started with 0.5", "left 0.5"}
    assert set(started(f"import jax; jax.devices(); {claim}")) == {"started with None", "left None"}
