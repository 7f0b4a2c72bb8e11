"""What the doctor says of GPUs that are not here: drivers, compilers, kernels, links."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jengine.cli.checks import gpus
from jengine.cli.checks.devices import describe
from jengine.cli.checks.finding import Finding
from pallas_kernels.fa4 import rules

DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"
H100 = {"id": 0, "kind": "NVIDIA H100", "capability": 90, "problem": None}
LINKS = """\
 \tGPU0\tGPU1\t
 GPU0\tX\tOK\t
 GPU1\tOK\tX\t

Legend:
  OK   = Status Ok
"""


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "version"
    file.write_text(DRIVER)
    monkeypatch.setattr(gpus, "NVIDIA_DRIVER", file)
    monkeypatch.setattr(gpus, "all_versions", lambda: {"jax-cuda12-plugin": "0.10.2"})
    monkeypatch.setattr(gpus, "tried_devices", lambda: [H100])
    monkeypatch.setattr(gpus, "compile_problem", lambda capability: None)
    monkeypatch.setattr(gpus, "p2p_table", lambda: LINKS)


def levels(found: list[Finding]) -> list[str]:
    return [one.level for one in found]


def test_a_machine_without_a_gpu_says_so_and_what_can_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "NVIDIA_DRIVER", tmp_path / "none")
    monkeypatch.setattr(gpus.shutil, "which", lambda name: None)
    (found,) = gpus.check()
    assert found.level == "note" and "jengine doctor --for sm_120" in found.text


@pytest.mark.usefixtures("driver")
def test_a_machine_that_can_serve() -> None:
    found = gpus.check()
    assert levels(found) == ["OK"] * 5
    assert "driver 550.54.14, jax-cuda12-plugin 0.10.2" in found[0].text
    assert "compute capability 9.0: kernels compile, to PTX 8.6" in found[1].text
    assert found[2].text == "cuda:0 NVIDIA H100: a small kernel runs"
    assert found[3].text.startswith("2 GPUs read") and found[4].text == "these GPUs can serve"


def test_nvidia_smi_that_hangs_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (smi := tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexec sleep 60\n")
    smi.chmod(0o755)
    monkeypatch.setattr(gpus.shutil, "which", lambda name: str(smi))
    monkeypatch.setattr(gpus, "SMI_SECONDS", 0.2)
    (found,) = gpus.peers(gpus.p2p_table())
    assert found.level == "problem" and "nvidia-smi topo had not ended after 0.2" in found.text


@pytest.mark.usefixtures("driver")
def test_what_dies_is_a_line_and_the_verdict_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    dead = subprocess.CompletedProcess([], -11, "", "F0000 fatal error: driver\n  at frame\n")
    assert gpus.ended_with(dead) == "F0000 fatal error: driver"
    monkeypatch.setattr(gpus, "tried_devices", lambda: gpus.ended_with(dead))
    found = gpus.check()
    assert "the process that tries the GPUs ended: F0000 fatal error" in found[1].text
    assert (found[-1].level, found[-1].text[-16:]) == ("problem", "1 problems above")
    monkeypatch.setattr(gpus, "tried_devices", lambda: [{**H100, "problem": "OUT_OF_MEMORY"}])
    assert "a small kernel fails: OUT_OF_MEMORY" in gpus.check()[2].text


@pytest.mark.usefixtures("driver")
def test_a_driver_that_is_too_old_and_a_plugin_that_is_missing() -> None:
    (old,) = gpus.driver("550.54.14", {"jax-cuda13-plugin": "0.12.0"})
    assert old.level == "problem" and "cuda13 needs driver 580" in old.text
    assert "jengine[cuda12]" in old.text
    (missing,) = gpus.driver("550.54.14", {})
    assert missing.level == "problem" and "no CUDA plugin" in missing.text


def test_gpus_that_are_not_linked_are_named() -> None:
    (apart,) = gpus.peers(LINKS.replace("OK", "NS"))
    assert apart.level == "note" and "GPU0, GPU1 cannot" in apart.text
    assert "NCCL_P2P_DISABLE=1" in apart.text
    assert list(gpus.peers("")) == []


def test_a_gpu_that_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "compile_problem", lambda capability: None)
    monkeypatch.setattr(gpus, "missing_for_triton", lambda: None)
    assert gpus.check_for("sm_120").text == "sm_120: kernels compile, to PTX 8.7"
    assert gpus.check_for("12.0").figures == {"capability": 120}
    assert gpus.check_for("blackwell").level == "problem"
    monkeypatch.undo()
    assert "not 7.5" in gpus.check_for("sm_75").text


@pytest.mark.parametrize(
    ("capability", "missing", "said"),
    [
        (90, None, "to PTX 8.6; prompts on FlashAttention-4"),
        (90, "not installed.", "prompts on Triton: not installed."),
        (100, None, "prompts on Triton: no device of this kind has run them yet"),
        (80, None, "to PTX 8.6"),
    ],
)
def test_what_prompts_run_on(
    capability: int, missing: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "compile_problem", lambda capability: None)
    monkeypatch.setattr(gpus, "missing_for_triton", lambda: None)
    monkeypatch.setattr(rules, "missing", lambda: missing)
    found = gpus.compiles("a GPU", capability).text
    assert said in found and ("prompts" in found) == (capability != 80)


def test_a_device_with_a_hole_says_its_largest_piece() -> None:
    class Device:
        id, platform, device_kind = 0, "gpu", "NVIDIA L4"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 20 * 10**9, "bytes_in_use": 0, "pool_bytes": 20 * 10**9,
                    "largest_free_block_bytes": 5 * 10**9}  # fmt: skip

    device: Any = Device()
    found = describe(device)
    assert found.figures["largest_free_piece"] == 5 * 10**9 and "in one piece" in found.text
