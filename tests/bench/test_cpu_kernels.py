"""What bounds a kernel follows from its time and the machine's rates; the command measures both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jengine.bench.cpu_kernels import ATTENTION, SCHEMES, bound, main
from jengine.bench.table.speeds import cpu_kernels
from pallas_kernels.choice import cpu_problem

RATES = {"threads": 2, "bytes_per_s": 20e9, "operations_per_s": {"bfloat16": 400e9}}


@pytest.mark.parametrize(
    ("moved", "operations", "seconds", "alone", "expected"),
    [
        (20e9, 4e9, 1.25, 2.0, "memory"),
        (2e9, 400e9, 1.25, 2.4, "arithmetic"),
        (2e9, 4e9, 1.0, 0.8, "threads"),  # a single thread has it sooner
        (2e9, 4e9, 1.0, 2.0, "other instructions"),
    ],
)
def test_a_kernel_is_bound_by_what_takes_most_of_its_time(
    moved: float, operations: float, seconds: float, alone: float, expected: str
) -> None:
    one = {"kernel": ATTENTION, "bytes": moved, "operations": operations, "seconds": seconds}
    found = bound(one, alone, RATES)
    assert found["bound"] == expected
    assert found["shares"]["memory"] == pytest.approx(moved / 20e9 / seconds)


@pytest.mark.slow
@pytest.mark.skipif(bool(cpu_problem()), reason=cpu_problem() or "runs")
def test_every_kernel_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    sizes = {"inputs": 64, "outputs": 96, "context": 20, "mb": 1, "seconds": 0}
    words = ["--rows", "1", "3", *(f"--{name}={value}" for name, value in sizes.items())]
    assert main([*words, "--output-json", str(file)]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    names = [(one["kernel"], one["rows"]) for one in found["kernels"]]
    assert names == [(name, rows) for rows in (1, 3) for name in (*SCHEMES, ATTENTION)]
    assert all(one["seconds"] > 0 and one["alone_s"] > 0 for one in found["kernels"])
    assert found["together"]["bytes_per_s"] > 0
    assert len(list(cpu_kernels(found))) == len(names)
    assert "bound by" in capsys.readouterr().out
