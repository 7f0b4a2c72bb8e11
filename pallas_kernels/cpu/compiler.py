"""Compiles the kernels with the machine's own C++ compiler, for this very processor.

In: the source files. Out: the path of a shared library in the user's private cache folder, compiled
if it is not there yet. Must not know JAX's runtime, only where its headers are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax

SOURCE = Path(__file__).with_name("source")
COMPILERS = ("c++", "g++", "clang++")
# Contraction is off so that an expression has the same bits wherever it is inlined.
FLAGS = ("-std=c++17", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-w")
# Handlers only check sizes and pass calls on; XLA's headers take long to optimise.
KERNEL_FLAGS, HANDLER_FLAGS = ("-O3",), ("-O1",)
LONGEST_COMPILE_S = 300
SHOWN_OF_ERRORS = 600


class NoKernels(Exception):
    """Why the kernels cannot run on this machine, and what to do about it."""


def compiled_library() -> Path:
    """The library for this machine."""
    compiler = find_compiler()
    folder = private_folder()
    found = folder / f"{library_key(compiler)}.so"
    if not found.exists():
        build(compiler, found)
    refuse_foreign(found)
    return found


def find_compiler() -> tuple[str, ...]:
    """The command that compiles C++ here: $CXX, a usual name, or the compiler in ziglang."""
    if not hasattr(os, "getuid"):
        raise NoKernels("the CPU kernels are for Linux and macOS.")
    if named := os.environ.get("CXX"):
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


def library_key(compiler: Sequence[str]) -> str:
    """Names a library after everything that its machine code depends on."""
    key = hashlib.sha256()
    for part in (*compiler, *FLAGS, *KERNEL_FLAGS, *HANDLER_FLAGS, *target_flags()):
        key.update(part.encode() + b"\0")
    for part in (compiler_version(compiler), platform.machine(), processor_features()):
        key.update(part.encode() + b"\0")
    for file in (*sources(), *headers()):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return key.hexdigest()[:32]


def source_digest() -> str:
    """Names the handlers' interface: it is part of the names by which programs call them."""
    contents = b"".join(file.read_bytes() for file in sources())
    return hashlib.sha256(contents).hexdigest()[:12]


def sources() -> list[Path]:
    """The files of the kernels, headers included."""
    return sorted(file for file in SOURCE.iterdir() if file.suffix in (".cc", ".h"))


def headers() -> list[Path]:
    """XLA's headers, as the installed jaxlib has them."""
    return sorted(Path(jax.ffi.include_dir()).rglob("*.h"))


def compiler_version(compiler: Sequence[str]) -> str:
    """What the compiler says it is."""
    return run([*compiler, "--version"], timeout=60)


def processor_features() -> str:
    """The instructions that the processor has, or its name where the system does not list them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = [line for line in lines if line.startswith(("flags", "Features"))]
    return wanted[0] if wanted else platform.processor()


def private_folder() -> Path:
    """Where libraries are kept. They are executed, so no other user may write there."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "jengine" / "kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise NoKernels(f"{folder} cannot be made: {error}. Set XDG_CACHE_HOME.") from error
    refuse_foreign(folder)
    return folder


def refuse_foreign(path: Path) -> None:
    """Raise if anyone but this user could have written there."""
    found = path.stat()
    if found.st_uid != os.getuid():
        raise NoKernels(f"{path} belongs to another user. Set XDG_CACHE_HOME to a folder of yours.")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoKernels(f"{path} can be written by other users: chmod go-w {path}")


def build(compiler: Sequence[str], wanted: Path) -> None:
    """Compile and link in a folder of its own, then rename: other processes may do so too."""
    with tempfile.TemporaryDirectory(dir=wanted.parent) as work:
        folder = Path(work)
        with ThreadPoolExecutor(os.cpu_count() or 1, "compile-kernels") as threads:
            objects = list(
                threads.map(partial(compile_file, compiler, folder), sorted(SOURCE.glob("*.cc")))
            )
        made = folder / wanted.name
        run([*compiler, "-shared", "-o", str(made), *map(str, objects)], timeout=LONGEST_COMPILE_S)
        made.chmod(0o700)
        made.replace(wanted)


def compile_file(compiler: Sequence[str], folder: Path, source: Path) -> Path:
    """Compile one source file."""
    made = folder / f"{source.stem}.o"
    level = HANDLER_FLAGS if "handler" in source.stem else KERNEL_FLAGS
    include = ("-isystem", jax.ffi.include_dir())
    command = [*compiler, *FLAGS, *level, *target_flags(), *include, "-c", str(source)]
    run([*command, "-o", str(made)], timeout=LONGEST_COMPILE_S)
    return made


def run(command: Sequence[str], timeout: float) -> str:
    """What a command prints. Raise NoKernels with its complaints if it fails."""
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=timeout, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKernels(f"{command[0]} failed: {error}") from error
    if done.returncode:
        raise NoKernels(f"{shlex.join(command)} failed: {done.stderr[-SHOWN_OF_ERRORS:].strip()}")
    return done.stdout


def commands_tried() -> Iterator[str]:
    """The names under which a compiler is looked for, for messages."""
    yield from ("$CXX", *COMPILERS, "ziglang")
