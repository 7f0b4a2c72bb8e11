"""Which PTX is written for which NVIDIA device, and which devices are refused."""

from __future__ import annotations

import importlib.util
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

import jengine.runner.step.attention_backend as backends
from jengine.config import CacheGroup, CacheSpec
from jengine.errors import ConfigError
from pallas_kernels import choice, cuda_devices
from pallas_kernels.cuda_devices import DEVICES, KernelError, compile_problem, ptx_version

DIED = "LLVM ERROR: PTX version 8.6 does not support target 'sm_120a'."


def install(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    """Let these packages be installed, and no other."""

    def version(name: str) -> str:
        if (key := name.replace("-", "_")) in packages:
            return packages[key]
        raise cuda_devices.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(cuda_devices.metadata, "version", version)


@pytest.mark.parametrize(
    ("cuda", "ptx"),
    [("12.0.1", 80), ("12.5.40", 85), ("12.6.85", 85), ("12.7.1", 86), ("12.8.93", 87),
     ("12.9.86", 88), ("13.0.48", 90), ("13.2.1", 92)],
)  # fmt: skip
def test_the_ptx_of_a_cuda_release(cuda: str, ptx: int) -> None:
    assert cuda_devices.ptx_of_cuda(cuda) == ptx


def test_ptx_is_as_new_as_the_device_and_no_newer_than_the_assembler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch)
    written = {one: ptx_version(one) for one in DEVICES}
    assert written == {**dict.fromkeys((80, 86, 87, 89, 90, 100), 86), 103: 88, 110: 90, 120: 87,
                       121: 88}  # fmt: skip
    install(monkeypatch, nvidia_cuda_nvcc_cu12="12.6.85")
    assert ptx_version(90) == 85
    install(monkeypatch, nvidia_cuda_nvcc="13.1.80", nvidia_cuda_nvcc_cu12="12.6.85")
    assert ptx_version(121) == 88


def test_a_device_newer_than_the_assembler_is_refused_with_what_would_serve_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, nvidia_cuda_nvcc_cu12="12.8.93")
    assert ptx_version(120) == 87
    with pytest.raises(KernelError, match=r"12\.1 needs CUDA 12\.9.*cu12 12\.8\.93.*\[cuda12\]"):
        ptx_version(121)
    with pytest.raises(
        KernelError, match=r"11\.0 needs CUDA 13\.0.*\[cuda13\]' 'nvidia-cuda-nvcc>"
    ):
        ptx_version(110)
    with pytest.raises(KernelError, match=r"8\.0, .*12\.1, not 13\.0"):
        ptx_version(130)


def test_a_compiler_that_dies_is_a_problem_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.CompletedProcess([], -6, "", f"{DIED}\nStack dump:\n")
    monkeypatch.setattr(cuda_devices, "run_probe", lambda *_: dead)
    assert DIED in str(compile_problem.__wrapped__(120))
    dead.stderr = ""
    assert "exit status -6" in str(compile_problem.__wrapped__(120))


def test_a_compiler_that_hangs_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    started = subprocess.Popen

    def hanging(command: list[str], **options: Any) -> subprocess.Popen[str]:
        return started(["sleep", "60"], **options)

    monkeypatch.setattr(cuda_devices.subprocess, "Popen", hanging)
    monkeypatch.setattr(cuda_devices, "PROBE_SECONDS", 0.2)
    problem = str(compile_problem.__wrapped__(90))
    assert "compute capability 9.0 does not compile: error: pallas_kernels.launch.probe" in problem
    assert "had not ended after 0.2 seconds" in problem and "nvidia-smi" in problem


def test_a_gpu_that_cannot_be_served_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, nvidia_cuda_nvcc_cu12="12.8.93")
    client = SimpleNamespace(platform_version="cuda 12080")
    gpu = SimpleNamespace(client=client, compute_capability="10.3", device_kind="NVIDIA B300")
    monkeypatch.setattr(choice.jax, "local_devices", lambda: [gpu])
    monkeypatch.setattr(choice.jax, "devices", lambda: [gpu])
    monkeypatch.setattr(backends.jax, "default_backend", lambda: "gpu")
    groups = (CacheGroup(CacheSpec("full", 8, 128), (0,)),)
    compile_problem.cache_clear()
    for wanted in ("auto", "triton"):
        with pytest.raises(ConfigError, match=r"B300: .*CUDA 12\.9.*attention_backend='xla'"):
            backends.available_backend(wanted, groups)
    compile_problem.cache_clear()
    assert backends.available_backend("xla", groups) == ("xla", None)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("capability", DEVICES)
def test_a_kernel_compiles_for_every_device(capability: int) -> None:
    """Each in a process of its own: four of them ended it."""
    assert compile_problem(capability) is None
