"""Programs in C++ that tests run: each is a file beside this one, with files of the kernels."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from pallas_kernels.cpu.compiler import SOURCE, find_compiler, target_flags

HERE = Path(__file__).parent
# What a compiler is told for processors with matrix tiles.
INSTRUCTIONS = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")


def compiled(folder: Path, program: str, *kernels: str, more: Sequence[str] = ()) -> Path:
    made = folder / program
    files = [HERE / f"{program}.cc", *(SOURCE / f"{name}.cc" for name in kernels)]
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-pthread", f"-I{SOURCE}"]
    command = [*find_compiler(), *flags, *target_flags(), *more, *map(str, files), "-o", str(made)]
    subprocess.run(command, check=True, timeout=300)
    return made


def preloaded_instructions(folder: Path) -> Path:
    """A library that carries out tile instructions where the processor has none: see its source."""
    return compiled(folder, "tile_instructions", more=["-shared", "-fPIC"])
