"""The share of a machine that each of several cores gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jengine.assembly.processes import core_shares
from jengine.assembly.processes.core_shares import Share, can_divide, shares, visible_gpus
from jengine.errors import ConfigError


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(core_shares, "GPU_FILES", tmp_path)
    return tmp_path


def processors(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(2, 2 + count)))


def test_processors_are_divided(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processors(monkeypatch, 5)
    assert [one.cpus for one in shares(2, 1, {})] == [[2, 3], [4, 5, 6]]
    assert [one.cpus for one in shares(5, 1, {})] == [[2], [3], [4], [5], [6]]


def test_where_there_are_too_few_processors_all_share_them(
    gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processors(monkeypatch, 2)
    assert shares(3, 1, {}) == [Share([], {})] * 3


def test_each_core_sees_its_own_gpus(gpus: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (gpus / name).touch()
    assert visible_gpus({}) == ["0", "1", "2", "10"]
    assert [one.env for one in shares(2, 2, {})] == [
        {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "2,10"},
    ]  # fmt: skip
    given = {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}
    assert [one.env["CUDA_VISIBLE_DEVICES"] for one in shares(2, 1, given)] == ["GPU-a", "GPU-b"]
    assert all(one.env == {} for one in shares(2, 1, {"JAX_PLATFORMS": "cpu"}))
    assert all(one.env == {} for one in shares(2, 1, {"CUDA_VISIBLE_DEVICES": ""}))


def test_too_few_gpus_are_refused(gpus: Path) -> None:
    with pytest.raises(ConfigError, match="needs 4 GPUs, and 3 are visible"):
        shares(2, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2"})


def test_devices_that_only_one_process_can_use(gpus: Path) -> None:
    assert can_divide({}) and can_divide({"JAX_PLATFORMS": "cpu"})
    (gpus / "vfio").mkdir()
    (gpus / "vfio" / "vfio").touch()
    assert can_divide({}), "the driver's own file is no device"
    (gpus / "vfio" / "0").touch()
    assert not can_divide({}) and not can_divide({"JAX_PLATFORMS": "tpu,cpu"})
    assert can_divide({"JAX_PLATFORMS": "cpu"})
    (gpus / "nvidia0").touch()
    assert can_divide({})
