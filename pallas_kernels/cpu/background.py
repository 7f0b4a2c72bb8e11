"""Compiles the CPU kernels on a background thread while a program imports jax and reads its model.

Must not import jax: compiling is meant to overlap with that import.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path

from pallas_kernels.cpu.build import compiled_library
from pallas_kernels.cpu.compiler import NoKernels

# Packages that give JAX other devices than the CPU.
ACCELERATORS = ("jax_plugins", "libtpu")
_beginning = threading.Lock()


def begin_if_jax_has_only_cpus() -> None:
    """Start compiling if it is certain, without importing jax, that JAX will use CPUs."""
    named = os.environ.get("JAX_PLATFORMS", "")
    if named == "cpu" or not (named or any(map(importlib.util.find_spec, ACCELERATORS))):
        begin()


def begin() -> Future[Path | NoKernels]:
    """Return the future of the library's path (or of the reason for having none); one per
    process."""
    with _beginning:
        return _making()


@cache
def _making() -> Future[Path | NoKernels]:
    made: Future[Path | NoKernels] = Future()

    def make() -> None:
        try:
            made.set_result(compiled_library())
        except NoKernels as reason:
            made.set_result(reason)
        except BaseException as error:  # noqa: BLE001 - raised by those who wait
            made.set_exception(error)

    threading.Thread(target=make, name="compile-kernels", daemon=True).start()
    return made
