"""Cache of compiled programs, shared by the engines of this process.

In: everything that a program depends on, as a key. Out: the program, compiled if no engine has it,
and freed with the last engine that does. Must not know what a program is.

A second engine of the same model and settings traces and compiles nothing. Parameters are operands,
so their values are not in the key. The key must contain all that tracing reads, compared by value:
programs with users' functions or modules are not shared. GPUs share no steps, because XLA records
CUDA graphs per program, for the buffers of one engine.
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
    """Process-wide settings on which compiled programs, or their cache folder, depend."""
    kept_in = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    return matmul_precision(), kept_in
