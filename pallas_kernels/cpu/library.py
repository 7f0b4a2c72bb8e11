"""Loads the compiled kernels and registers them with XLA, once per process.

The library is compiled on a thread of its own, so that a program can go on meanwhile.
"""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import jax

from pallas_kernels.cpu.build import compiled_library
from pallas_kernels.cpu.compiler import NoKernels, source_digest

HANDLERS = (
    "pack", "matmul", "normalize", "attention", "write_cache", "rotate_and_write", "best_tokens",
)  # fmt: skip
_beginning, _loading = threading.Lock(), threading.Lock()


def begin() -> None:
    """Compile the library in the background if need be: for those who know they will load it."""
    _begun()


def problem() -> str | None:
    """Why the CPU kernels cannot run here, or None. Waits for the library."""
    try:
        load()
    except NoKernels as reason:
        return str(reason)
    return None


def load() -> None:
    """Register the handlers; NoKernels says why that is impossible."""
    made = _begun().result()
    with _loading:
        reason = _load(made)
    if reason is not None:
        raise NoKernels(reason)


def _begun() -> Future[Path | NoKernels]:
    with _beginning:  # threads that trace at the same time must not compile twice
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


@cache
def _load(made: Path | NoKernels) -> str | None:
    if isinstance(made, NoKernels):
        return str(made)
    try:
        library = ctypes.CDLL(str(made))
    except OSError as error:
        return str(error)
    for name in HANDLERS:
        handler = jax.ffi.pycapsule(getattr(library, f"jengine_{name}"))
        jax.ffi.register_ffi_target(target(name), handler, platform="cpu")
    return None


def target(name: str) -> str:
    """The name by which programs call a handler.

    It names the source too: a program that was compiled for other kernels, and kept in XLA's cache,
    must not run with these.
    """
    return f"jengine_{name}_{source_digest()}"
