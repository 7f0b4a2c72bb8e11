"""Matmuls in matrix tiles (AMX): by plain C++, which any processor runs, and as instructions where
this one has them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pallas_kernels.choice import cpu_problem
from pallas_kernels.cpu.compiler import SOURCE, find_compiler, target_flags
from tests.pallas_kernels.cpu.test_threads import compiled

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


@pytest.mark.skipif("native" not in target_flags()[0], reason="another kind of processor")
def test_the_instructions_compile_and_run_where_they_are(tmp_path: Path) -> None:
    probe = tmp_path / "probe.cc"
    probe.write_text(
        '#include "tile_kernel.h"\n'
        "auto used = jengine::multiply_in_tiles<jengine::TiledBfloat16>;\n"
    )
    command = [*find_compiler(), "-std=c++17", "-O1", "-w", *target_flags(), f"-I{SOURCE}"]
    tiles = ["-mamx-tile", "-mamx-bf16", "-mamx-int8"]
    made = tmp_path / "probe.o"
    done = subprocess.run(
        [*command, *tiles, "-c", str(probe), "-o", str(made)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    if "-mamx" in done.stderr:
        pytest.skip("the compiler is for another kind of processor, or too old")
    assert done.returncode == 0, done.stderr
    # tdpbf16ps of the second tile of rows and the second half of a panel, to their sums.
    assert bytes.fromhex("c4e2425cdd") in made.read_bytes()
    native = compiled(tmp_path, "tiles")
    for case in CASES:
        assert said(native, case) in ("", "no tiles\n")


def said(program: Path, case: tuple[int, ...]) -> str:
    done = subprocess.run(
        [str(program), *map(str, case)], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout
