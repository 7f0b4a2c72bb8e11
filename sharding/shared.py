"""Compiled programs that engines of this process share.

In: everything that a program is made of, as a key. Out: the program of that key, compiled if no
engine has it, and freed with the last one that does. Must not know what a program is.

So a second engine of the same model and settings traces and compiles nothing. Parameters are
operands: other values are no other program. What a trace reads must be in the key, and compared:
programs with functions or modules of users are not shared. GPUs share no steps, because XLA records
CUDA graphs per program and for the buffers of one engine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

import jax

from sharding.jax_settings import matmul_precision

_KEPT: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def shared(key: Hashable | None, make: Callable[[], Any]) -> Any:
    """Get or create the value cached under `key`. Not cached if the key is None or not hashable.

    Threads that miss the same key concurrently each call `make`; all get the first one stored.
    """
    if key is None:
        return make()
    key = key, *_settings()
    try:
        found = _KEPT.get(key)
    except TypeError:  # lists or arrays are among the settings
        return make()
    if found is None:
        found = _KEPT.setdefault(key, make())
    return found


def _settings() -> tuple[Any, ...]:
    """Settings of the process by which its programs, or where they are kept, differ."""
    kept_in = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    return matmul_precision(), kept_in
