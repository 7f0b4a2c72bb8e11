"""Matmuls in matrix tiles (AMX): by plain C++, which any processor runs, and as instructions where
this one has them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pallas_kernels.choice import cpu_problem
from tests.pallas_kernels.cpu.programs import INSTRUCTIONS, compiled, preloaded_instructions

problem = cpu_problem()
pytestmark = pytest.mark.skipif(bool(problem), reason=problem or "runs")
# Rows, numbers of k, and steps of two after which the sums are stored and loaded again.
CASES = [(1, 64, 999), (16, 1, 999), (17, 33, 16), (31, 98, 32), (32, 160, 48), (5, 1000, 16)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("tiles"), "tiles", more=["-DJENGINE_PLAIN_TILES"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_sums_are_right_and_the_same_alone(plain: Path, case: tuple[int, ...]) -> None:
    assert said(plain, case) == ""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="instructions of x86-64")
def test_the_instructions_do_the_same(tmp_path: Path) -> None:
    """The build for processors with tiles. On others a signal handler carries out its instructions,
    and refuses what the processor would."""
    try:
        program = compiled(tmp_path, "tiles", more=INSTRUCTIONS)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler does not know the instructions")
    handler = preloaded_instructions(tmp_path)
    for case in CASES:
        assert said(program, case, LD_PRELOAD=str(handler)) == ""
        assert said(program, case) in ("", "no tiles\n")


def said(program: Path, case: tuple[int, ...], **environment: str) -> str:
    done = subprocess.run(
        [str(program), *map(str, case)],
        capture_output=True, text=True, check=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    return done.stdout
