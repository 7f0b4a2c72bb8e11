"""Builds what a release uploads: the source, a wheel for any machine, and wheels with CPU kernels.

    pip install --group wheels && python .ci/wheels.py FOLDER [MACHINE ...]

Wheels with kernels are the one for any machine plus the libraries that
pallas_kernels/cpu/prebuilt.py lists, cross-compiled by zig against an old glibc. They are made here
and not by a build hook, so that an installation from source needs no zig.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pallas_kernels.cpu.compiler import FLAGS, SOURCE, headers, sources  # noqa: E402
from pallas_kernels.cpu.prebuilt import BUILDS, FOLDER, Build, file_name  # noqa: E402

GLIBC = (2, 17)
PLATFORM = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"


def main(out: Path, machines: Collection[str]) -> None:
    """Write the source distribution and all wheels to `out`; those with kernels for these
    machines."""
    require_oldest_jaxlib()
    run("-m", "build", "--outdir", str(out), str(ROOT))
    (pure,) = out.glob("*-py3-none-any.whl")
    wanted = [build for build in BUILDS if build.machine in machines]
    with tempfile.TemporaryDirectory() as work, ThreadPoolExecutor() as compilers:
        libraries = Path(work)
        list(compilers.map(lambda build: compile_library(build, libraries), wanted))
        for machine, builds in groupby(wanted, lambda build: build.machine):
            add_libraries(pure, machine, [libraries / file_name(one) for one in builds], out)


def require_oldest_jaxlib() -> None:
    """XLA calls handlers that were compiled against older headers, not against newer ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    oldest = next(one for one in project["dependencies"] if one.startswith("jax>="))
    wanted = oldest.removeprefix("jax>=")
    if version("jaxlib") != wanted:
        raise SystemExit(f"jaxlib is {version('jaxlib')}: pip install jaxlib=={wanted}, the oldest")


def compile_library(build: Build, folder: Path) -> None:
    unit = folder / f"{build.name}.cc"
    files = [file.name for file in sources() if file.suffix == ".cc"]
    unit.write_text("".join(f'#include "{name}"\n' for name in files), encoding="utf-8")
    compiled = unit.with_suffix(".o")
    zig = ("-m", "ziglang", "c++", "-target", f"{build.machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}")
    run(
        *zig, f"-mcpu={build.processor}", *FLAGS, "-I", str(SOURCE), "-isystem", str(headers()),
        "-c", str(unit), "-o", str(compiled),
    )  # fmt: skip
    # For any processor of the machine: zig compiles its C++ library once for all builds.
    run(*zig, "-shared", "-s", str(compiled), "-o", str(folder / file_name(build)))


def add_libraries(pure: Path, machine: str, libraries: Iterable[Path], out: Path) -> None:
    """Write the wheel for a machine: the one for any machine, plus these libraries."""
    with tempfile.TemporaryDirectory() as work:
        run("-m", "wheel", "unpack", str(pure), "--dest", work)
        (content,) = Path(work).iterdir()
        folder = content / FOLDER.relative_to(ROOT)
        folder.mkdir()
        for library in libraries:
            library.replace(folder / library.name)
        (about,) = content.glob("*.dist-info/WHEEL")
        text = about.read_text("utf-8").replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
        about.write_text(text.replace("none-any", f"none-{PLATFORM}_{machine}"), "utf-8")
        run("-m", "wheel", "pack", str(content), "--dest-dir", str(out))


def run(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:] or {build.machine for build in BUILDS})
