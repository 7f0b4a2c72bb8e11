"""The C++ compiler of this machine, and a name for what it makes of the kernels' source.

Out: commands, and a key of everything that the library's machine code depends on. Must not start
JAX: the library is compiled while a program still imports it.
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
# Files that are compiled together, as each would parse the same headers again; the unit that takes
# longest is first. The empty unit takes the files that are not named here.
UNITS: tuple[tuple[str, ...], ...] = (
    ("attention.cc",),
    ("best_tokens.cc", "draw.cc", "logits.cc", "logits_handlers.cc"),
    (),
    ("matmul.cc", "matmul_handlers.cc", "cache_handlers.cc", "xla_call.cc", "low_rank_handler.cc"),
)
# XLA's interface for functions that it calls; other headers of jaxlib are not used.
INTERFACE = Path("xla", "ffi", "api", "c_api.h")
LONGEST_VERSION_S = 60


class NoKernels(Exception):
    """Why the kernels cannot run on this machine, and what to do about it."""


def find_compiler() -> tuple[str, ...]:
    """The command that compiles C++ here: $CXX, a usual name, or the compiler in ziglang."""
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
    """Let the compiler use all that this processor has."""
    is_arm = platform.machine() in ("aarch64", "arm64")
    return ("-mcpu=native",) if is_arm else ("-march=native",)


def compile_command(compiler: Sequence[str]) -> tuple[str, ...]:
    """Compiles one file, given -c, its name, -o and the object's."""
    return (*compiler, *FLAGS, *target_flags(), "-I", str(SOURCE), "-isystem", str(headers()))


def library_name(compiler: Sequence[str]) -> str:
    """The file of a library, named after everything that its machine code depends on."""
    key = hashlib.sha256()
    for part in (*compiler, compiler_version(compiler)):
        key.update(part.encode() + b"\0")
    return f"{runnable_key()}-{key.hexdigest()[:16]}.so"


def runnable_key() -> str:
    """Names what a library must have been made from and for to run here, by any compiler."""
    key = hashlib.sha256()
    for part in (*FLAGS, *target_flags(), platform.system(), platform.machine()):
        key.update(part.encode() + b"\0")
    key.update(processor_features().encode() + b"\0")
    for file in (*sources(), headers() / INTERFACE):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()[:16]


@cache
def source_digest() -> str:
    """Names the handlers' interface: it is part of the names by which programs call them."""
    contents = b"".join(file.read_bytes() for file in sources())
    return hashlib.sha256(contents).hexdigest()[:12]


def sources() -> list[Path]:
    """The files of the kernels, headers included."""
    return sorted(file for file in SOURCE.iterdir() if file.suffix in (".cc", ".h"))


def units(cores: int) -> list[str]:
    """The text of each unit; where there are only two cores, two that take equally long."""
    named = {file for files in UNITS for file in files}
    others = [file.name for file in sources() if file.suffix == ".cc" and file.name not in named]
    texts = ["".join(f'#include "{file}"\n' for file in files or others) for files in UNITS]
    return texts if cores > 2 else ["".join(texts[:2]), "".join(texts[2:])]


def headers() -> Path:
    """Where the installed jaxlib has XLA's headers."""
    found = importlib.util.find_spec("jaxlib")
    places = () if found is None else tuple(found.submodule_search_locations or ())
    for place in places:
        if (Path(place) / "include" / INTERFACE).is_file():
            return Path(place) / "include"
    raise NoKernels("the installed jaxlib has no headers of XLA. Install jaxlib from PyPI.")


def compiler_version(compiler: Sequence[str]) -> str:
    """What the compiler says it is."""
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
    """The compiler and its version, or none, where a library was carried here."""
    try:
        version = compiler_version(find_compiler()).splitlines()
    except NoKernels:
        return "another machine, which had a compiler"
    return version[0] if version else "a compiler without a name"


def processor_features() -> str:
    """The instructions that the processor has, or its name where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = [line for line in lines if line.startswith(("flags", "Features"))]
    return wanted[0] if wanted else platform.processor()
