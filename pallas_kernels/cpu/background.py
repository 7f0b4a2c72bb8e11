"""Compiles the kernels on a thread of its own, while a program imports jax and reads its model.

Must not import jax: that is what it runs beside.
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
    """Begin, if that is certain before jax is imported."""
    named = os.environ.get("JAX_PLATFORMS", "")
    if named == "cpu" or not (named or any(map(importlib.util.find_spec, ACCELERATORS))):
        begin()


def begin() -> Future[Path | NoKernels]:
    """The library, or why there is none; compiled once per process."""
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
