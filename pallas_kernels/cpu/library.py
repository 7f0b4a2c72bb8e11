"""Loads the compiled kernels and registers them with XLA, once per process."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.cpu.background import begin
from pallas_kernels.cpu.compiler import NoKernels, source_digest
from pallas_kernels.cpu.prebuilt import FOLDER

HANDLERS = (
    "pack", "pack_codes", "matmul", "low_rank", "normalize", "attention", "empty_cache",
    "write_cache", "rotate_and_write",
    "best_tokens", "softmax_parts", "cut_logits", "noise_keys", "noise", "draw_tokens",
)  # fmt: skip
_loading = threading.Lock()


def problem() -> str | None:
    """Why the CPU kernels cannot run here, or None. Blocks until they are compiled."""
    try:
        load()
    except NoKernels as reason:
        return str(reason)
    return None


def loaded_file() -> Path | None:
    made = begin().result() if _load.cache_info().currsize else None
    return made if isinstance(made, Path) else None


def is_prebuilt() -> bool:
    """Whether the loaded library came with the wheel."""
    made = loaded_file()
    return made is not None and made.parent == FOLDER


def load() -> None:
    """Register the FFI handlers, once. Raises NoKernels if that is impossible."""
    made = begin().result()
    with _loading:
        reason = _load(made)
    if reason is not None:
        raise NoKernels(reason)


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


def instruction_set() -> str:
    load()
    found = ctypes.CDLL(str(loaded_file())).jengine_instruction_set
    found.restype = ctypes.c_char_p
    return found().decode()


def ffi_call(name: str, results: Any, **options: Any) -> Callable[..., Any]:
    """A call of a handler, as `jax.ffi.ffi_call`."""
    load()
    return jax.ffi.ffi_call(target(name), results, **options)


def target(name: str) -> str:
    """FFI target name of a handler, with the source's hash: a program from XLA's compilation cache
    that was built against other kernels must not call these."""
    return f"jengine_{name}_{source_digest()}"
