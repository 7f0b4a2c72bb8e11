"""The kernels' tests once more on other builds: each instruction set, and with sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pallas_kernels.cpu.programs import INSTRUCTIONS, preloaded_instructions

ROOT = Path(__file__).parents[3]
OPERATIONS = (
    "decode_attention", "prefill_attention", "rotate_and_write", "cache_write", "best_tokens",
    "token_sampling",
)  # fmt: skip
FILES = [
    *[f"tests/pallas_kernels/test_{name}.py" for name in OPERATIONS],
    "tests/pallas_kernels/test_cache_codes.py",
    "tests/pallas_kernels/cpu/test_matmul.py",
    "tests/pallas_kernels/cpu/test_codes.py",
    "tests/pallas_kernels/cpu/test_rounded_rows.py",
    "tests/pallas_kernels/cpu/test_attention_bits.py",
    "tests/pallas_kernels/cpu/test_logits.py",
    "tests/pallas_kernels/cpu/test_draw.py",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed"),
]
PLAIN_TILES = "-DJENGINE_PLAIN_TILES"
# What this processor has, less and less of it; and matrix tiles, as plain C++.
OTHERS = {
    "tiles": PLAIN_TILES,
    "no bfloat16 and no integer instructions": "-mno-avx512bf16 -mno-avx512vnni",
    "AVX2": "-mno-avx512f",
    "nothing": "-mno-avx512f -mno-avx2 -mno-fma -mno-avx",
}


# Sanitizers take longer to compile than an engine waits, beside other tests.
COMPILE = """
from pallas_kernels.cpu import build
build.LONGEST_COMPILE_S = 1500
build.compiled_library()
"""


def run_tests(folder: Path, compiler: str, **environment: str) -> None:
    given = {**os.environ, "CXX": compiler, "XDG_CACHE_HOME": str(folder), **environment}
    alone = {name: value for name, value in given.items() if name != "LD_PRELOAD"}
    subprocess.run([sys.executable, "-c", COMPILE], env=alone, cwd=ROOT, check=True)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider",
         "-p", "no:faulthandler", "-k", "cpu and not xla and not triton", *FILES],
        env=given, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout and " skipped" not in done.stdout


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of x86-64")
@pytest.mark.parametrize("other", OTHERS)
def test_on_other_instructions(other: str, tmp_path: Path) -> None:
    run_tests(tmp_path, f"g++ {OTHERS[other]}")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="instructions of x86-64")
def test_on_the_instructions_of_tiles(tmp_path: Path) -> None:
    """Where the processor does not have them, a signal handler carries them out."""
    handler = preloaded_instructions(tmp_path)
    run_tests(tmp_path, f"g++ {' '.join(INSTRUCTIONS)}", LD_PRELOAD=str(handler))


@pytest.mark.parametrize("tiles", ["", PLAIN_TILES])
def test_with_sanitizers(tiles: str, tmp_path: Path) -> None:
    """No access out of bounds, no undefined behaviour, at any shape of the tests, with threads that
    help with the smallest work."""
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    if not all(os.path.isabs(library) for library in libraries):
        pytest.skip("g++ has no sanitizers here")
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g1 -DJENGINE_WAKING_NS=1"
    flags = f"{flags} {tiles}"
    run_tests(
        tmp_path, f"g++ {flags}", LD_PRELOAD=" ".join(libraries),
        ASAN_OPTIONS="detect_leaks=0,verify_asan_link_order=0",
    )  # fmt: skip
