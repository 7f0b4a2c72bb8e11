"""Triton's kernels are loaded on every device before a step with collectives runs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jengine.runner import build, rehearsal
from tests.api.engines import tiny_engine
from tests.pallas_kernels.implementations import TRITON


@pytest.mark.parametrize("backend", [TRITON])
def test_every_kernel_of_a_program_is_loaded_on_every_device_before_it_runs(
    backend: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pallas_kernels.launch import call

    ran: Counter[Any] = Counter()
    lowered: set[Any] = set()
    loaded: list[Any] = []
    interpret, launch_for, load = call.interpret, call.launch_for, rehearsal.load_kernels

    def running(kernel: Any, arrays: Any, plan: Any, *others: Any) -> Any:
        ran[kernel.__name__, plan, tuple(x.shape for x in arrays)] += 1
        return interpret(kernel, arrays, plan, *others)

    def lowering(launch: Any, capability: int) -> Any:
        lowered.add(plan := launch_for(launch, capability))
        return plan

    def loading(kernels: set[Any], whole: Any) -> None:
        loaded.append({*lowered})
        load(kernels, whole)

    monkeypatch.setattr(call, "interpret", running)
    monkeypatch.setattr(call, "launch_for", lowering)
    monkeypatch.setattr(build, "load_kernels", loading)
    monkeypatch.setattr(build, "loads_kernels", lambda *_: True)
    settings: dict[str, Any] = {"tensor_parallel_size": 2, "attention_backend": backend,
                                "compilation_config": {"wait_for": "all"}}  # fmt: skip
    with tiny_engine(folder, "greedy", enforce_eager=False, **settings):
        (of_programs,) = loaded
    assert len(of_programs) == 4, "decode and prefill attention, and a write of each step"
    assert {plan for _, plan, _ in ran} >= of_programs, "kernels of the programs that have not run"
    assert {*ran.values()} == {2}, "each of them once on each of two devices"
