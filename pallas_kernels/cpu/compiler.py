"""Finds the C++ compiler and names the library after everything its machine code depends on.

Out: commands and cache keys. Must not start JAX: the library is compiled while jax is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("source")
COMPILERS = ("c++", "g++", "clang++")
# Contraction is off so that an expression has the same bits wherever it is inlined.
FLAGS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-w")
# Files that are compiled together, as each would parse the same headers again. They take 10, 9, 4
# and 2 parts of the time: the longest is first, so that two cores end together. The empty unit has
# the files that are not named here.
UNITS: tuple[tuple[str, ...], ...] = (
    (),
    ("matmul.cc", "matmul_handlers.cc", "cache_handlers.cc", "xla_call.cc", "low_rank_handler.cc"),
    ("attention.cc",),
    ("best_tokens.cc", "draw.cc", "logits.cc", "logits_handlers.cc"),
)
# XLA's interface for functions that it calls; other headers of jaxlib are not used.
INTERFACE = Path("xla", "ffi", "api", "c_api.h")
LONGEST_VERSION_S = 60


class NoKernels(Exception):
    """The CPU kernels cannot run on this machine; the message says why and what to do."""


def find_compiler() -> tuple[str, ...]:
    """Return the C++ compiler command: $CXX, a usual name on PATH, or the one in ziglang."""
    if not hasattr(os, "getuid"):
        raise NoKernels("the CPU kernels are for Linux and macOS.")
    if named := os.environ.get("CXX", "").strip():
        return tuple(shlex.split(named))
    for name in COMPILERS:
        if found := shutil.which(name):
            return (found,)
    if importlib.util.find_spec("ziglang"):
        return (sys.executable, "-m", "ziglang", "c++")
    raise NoKernels(
        "there is no C++ compiler. Install g++ or clang++, or pip install 'jengine[compiler]'."
    )


def target_flags() -> tuple[str, ...]:
    is_arm = platform.machine() in ("aarch64", "arm64")
    return ("-mcpu=native",) if is_arm else ("-march=native",)


def compile_command(compiler: Sequence[str]) -> tuple[str, ...]:
    """The compiler command without -c SOURCE -o OBJECT."""
    return (*compiler, *FLAGS, *target_flags(), "-I", str(SOURCE), "-isystem", str(headers()))


def library_name(compiler: Sequence[str]) -> str:
    """File name of the library: `runnable_key` plus a hash of the compiler and its version."""
    key = hashlib.sha256()
    for part in (*compiler, compiler_version(compiler)):
        key.update(part.encode() + b"\0")
    return f"{runnable_key()}-{key.hexdigest()[:16]}.so"


def runnable_key() -> str:
    """Hash of source, flags and processor: libraries with an equal key run here, whatever built
    them."""
    key = hashlib.sha256()
    for part in (*FLAGS, *target_flags(), platform.system(), platform.machine()):
        key.update(part.encode() + b"\0")
    key.update(processor_features().encode() + b"\0")
    for file in (*sources(), headers() / INTERFACE):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()[:16]


@cache
def source_digest() -> str:
    """Hash of the source, part of the FFI target names: it versions the interface of the
    handlers."""
    contents = b"".join(file.read_bytes() for file in sources())
    return hashlib.sha256(contents).hexdigest()[:12]


def sources() -> list[Path]:
    """The files of the kernels, headers included."""
    return sorted(file for file in SOURCE.iterdir() if file.suffix in (".cc", ".h"))


def units() -> list[str]:
    """Source text of each translation unit, the longest to compile first."""
    named = {file for files in UNITS for file in files}
    others = [file.name for file in sources() if file.suffix == ".cc" and file.name not in named]
    return ["".join(f'#include "{file}"\n' for file in files or others) for files in UNITS]


def headers() -> Path:
    """Include folder of XLA's headers in the installed jaxlib."""
    found = importlib.util.find_spec("jaxlib")
    places = () if found is None else tuple(found.submodule_search_locations or ())
    for place in places:
        if (Path(place) / "include" / INTERFACE).is_file():
            return Path(place) / "include"
    raise NoKernels("the installed jaxlib has no headers of XLA. Install jaxlib from PyPI.")


def compiler_version(compiler: Sequence[str]) -> str:
    """Output of the compiler's --version."""
    try:
        done = subprocess.run(  # noqa: S603
            [*compiler, "--version"],
            capture_output=True, text=True, check=False, timeout=LONGEST_VERSION_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(f"{compiler[0]} failed: {error}") from error
    if done.returncode:
        raise NoKernels(f"{shlex.join(compiler)} --version failed: {done.stderr[-600:].strip()}")
    return done.stdout


def described_compiler() -> str:
    """First line of the compiler's version, or a note that the library was built on another
    machine."""
    try:
        version = compiler_version(find_compiler()).splitlines()
    except NoKernels:
        return "another machine, which had a compiler"
    return version[0] if version else "a compiler without a name"


def processor_features() -> str:
    """The processor's feature flags, or its name where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = [line for line in lines if line.startswith(("flags", "Features"))]
    return wanted[0] if wanted else platform.processor()
