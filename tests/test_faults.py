"""Faults reach the function that was named, at the call that was named, in a child only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import ROOT, UNPICKLED, fault_environment

PROGRAM = """
import textwrap
for number in range(1, 5):
    try:
        print(number, textwrap.dedent(" x"))
    except RuntimeError as error:
        print(number, "raised", error)
"""


def run(folder: Path, *faults: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-u", "-c", PROGRAM], env=fault_environment(folder, *faults), cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return done.returncode, [line[:8] for line in done.stdout.splitlines()]


def test_unpickling_is_told(tmp_path: Path) -> None:
    program = "import pickle; pickle.loads(pickle.dumps(pickle.Pickler))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=fault_environment(tmp_path), cwd=ROOT,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stderr.startswith(UNPICKLED) and "Pickler" in done.stderr


@pytest.mark.parametrize(
    ("fault", "status", "lines"),
    [
        ("textwrap:dedent:raise@2", 0, ["1 x", "2 raised", "3 x", "4 x"]),
        ("textwrap:dedent:raise@3+", 0, ["1 x", "2 x", "3 raised", "4 raised"]),
        ("textwrap:dedent:kill@3", -9, ["1 x", "2 x"]),
        ("textwrap:dedent:exit@1", 3, []),
        ("textwrap:TextWrapper.wrap:raise@1", 0, ["1 x", "2 x", "3 x", "4 x"]),
    ],
)
def test_a_fault_happens_where_and_when_it_is_told(
    tmp_path: Path, fault: str, status: int, lines: list[str]
) -> None:
    assert run(tmp_path, fault) == (status, lines)
