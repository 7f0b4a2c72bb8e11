"""Compiles the kernels into a shared library in the user's private cache folder.

In: compiler commands. Out: the library's path. The library is built in a temporary folder and
renamed, so concurrent and killed processes never leave a partial one.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from pallas_kernels.cpu.compiler import (
    NoKernels,
    compile_command,
    find_compiler,
    library_name,
    runnable_key,
    units,
)
from pallas_kernels.cpu.prebuilt import prebuilt_library

LONGEST_COMPILE_S = 300
BETWEEN_LOOKS_S = 0.02
KILLER = Path(__file__).with_name("kill_groups.py")
WORK = "compiling-"
SHOWN_OF_ERRORS = 600


def compiled_library() -> Path:
    """Return the library for this machine, compiling it if needed.

    The wheel's prebuilt library comes first unless $CXX is set. Without a compiler, a library in
    the folder with the same key is used, such as one built on another machine.
    """
    if not os.environ.get("CXX", "").strip() and (ready := prebuilt_library()):
        return ready
    folder = private_folder()
    try:
        compiler = find_compiler()
    except NoKernels:
        if not (carried := sorted(folder.glob(f"{runnable_key()}-*.so"))):
            raise
        refuse_foreign(carried[0])
        return carried[0]
    found = folder / library_name(compiler)
    if not found.exists():
        remove_abandoned(folder)
        build(compiler, found)
    refuse_foreign(found)
    return found


def private_folder() -> Path:
    """Cache folder of libraries, beside jengine.cache_folder, which this package must not import.
    They are executed, so it must not be writable by other users."""
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(base) / "jengine" / "kernels"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        raise NoKernels(
            f"there is no folder for the compiled kernels: {error}. Set XDG_CACHE_HOME."
        ) from error
    refuse_foreign(folder)
    return folder


def refuse_foreign(path: Path) -> None:
    """Raise NoKernels if another user owns or can write the file."""
    found = path.stat()
    if found.st_uid != os.getuid():
        raise NoKernels(f"{path} belongs to another user. Set XDG_CACHE_HOME to a folder of yours.")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NoKernels(f"{path} can be written by other users: chmod go-w {path}")


def remove_abandoned(folder: Path) -> None:
    """Delete build folders of processes that were killed while compiling."""
    oldest = time.time() - 2 * LONGEST_COMPILE_S
    for work in folder.glob(WORK + "*"):
        with suppress(FileNotFoundError):  # another process removes it too
            if work.stat().st_mtime < oldest:
                shutil.rmtree(work)


def build(compiler: Sequence[str], wanted: Path) -> None:
    """Compile and link in a temporary folder, then rename the library to `wanted`."""
    try:
        with Jobs() as jobs, tempfile.TemporaryDirectory(prefix=WORK, dir=wanted.parent) as work:
            made = Path(work) / wanted.name
            try:
                compile_units(compiler, jobs, Path(work), made)
            finally:
                jobs.kill()
            made.chmod(0o700)
            made.replace(wanted)
    except OSError as error:
        raise NoKernels(f"the kernels cannot be compiled in {wanted.parent}: {error}") from error


def compile_units(compiler: Sequence[str], jobs: Jobs, work: Path, made: Path) -> None:
    """Compile all units, one job per core, and link them."""
    commands, objects = [], []
    for number, text in enumerate(units()):
        unit, compiled = work / f"unit_{number}.cc", work / f"unit_{number}.o"
        unit.write_text(text, encoding="utf-8")
        commands.append([*compile_command(compiler), "-c", str(unit), "-o", str(compiled)])
        objects.append(str(compiled))
    jobs.run(commands, work)
    jobs.run([[*compiler, "-shared", "-o", str(made), *objects]], work)


class Jobs:
    """Concurrent compiler processes that never outlive this process, even if it is killed.

    They run in the watchdog's process group, so Ctrl-C reaches the waiting process alone. A
    compiler joins it before it closes its copy of the watchdog's pipe: none starts too late to be
    killed.
    """

    def __init__(self) -> None:
        self._deadline = time.monotonic() + LONGEST_COMPILE_S
        self._running: dict[subprocess.Popen[bytes], IO[bytes]] = {}
        self._ending, self._closed = threading.Event(), threading.Event()
        self._process = os.getpid()

    def __enter__(self) -> Jobs:
        self._killer = subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-S", str(KILLER)], stdin=subprocess.PIPE, process_group=0,
        )  # fmt: skip
        atexit.register(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._closed.set()
        atexit.unregister(self._end)

    def run(self, commands: Sequence[Sequence[str]], work: Path) -> None:
        """Run all commands, one per core at a time. Raises NoKernels with the output of one that
        fails."""
        waiting = list(commands)
        while waiting or self._running:
            while waiting and len(self._running) < (os.cpu_count() or 1):
                self._start(waiting.pop(0), work)
            self._look()
            self._ending.wait(BETWEEN_LOOKS_S)

    def kill(self) -> None:
        """Kill running compilers, after a failure or at exit."""
        if self._killer.returncode is None:
            os.killpg(self._killer.pid, signal.SIGKILL)
            self._killer.communicate()
        for process, said in self._running.items():
            process.wait()
            said.close()
        self._running.clear()

    def _start(self, command: Sequence[str], work: Path) -> None:
        said = tempfile.TemporaryFile(dir=work)  # noqa: SIM115 - closed with its process
        process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            env={**os.environ, "TMPDIR": str(work)}, process_group=self._killer.pid,
        )  # fmt: skip
        self._running[process] = said

    def _look(self) -> None:
        if self._ending.is_set():
            raise NoKernels("this process ended while the kernels were compiled.")
        for process in [one for one in self._running if one.poll() is not None]:
            with self._running.pop(process) as said:
                if process.returncode:
                    said.seek(0)
                    text = said.read().decode(errors="replace")
                    raise NoKernels(f"{printed(process)} failed: {first_error(text)}")
        if self._running and time.monotonic() > self._deadline:
            slow = printed(next(iter(self._running)))
            raise NoKernels(f"{slow} took longer than {LONGEST_COMPILE_S} s.")

    def _end(self) -> None:
        """At exit, have the thread that runs the jobs kill them and clean up."""
        if os.getpid() == self._process:  # not in a process that was forked meanwhile
            self._ending.set()
            self._closed.wait(1.0)


def printed(process: subprocess.Popen[bytes]) -> str:
    return shlex.join(map(str, process.args))  # pyrefly: ignore[bad-argument-type]


def first_error(text: str) -> str:
    """Compiler output from its first error on, truncated."""
    lines = text.strip().splitlines()
    begin = next((i for i, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[begin:])[:SHOWN_OF_ERRORS]
