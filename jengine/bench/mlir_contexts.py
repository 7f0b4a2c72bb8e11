"""Lets programs share MLIR contexts, for processes that compile many small programs."""

from __future__ import annotations

import threading
from itertools import cycle
from typing import Any

from jax._src.interpreters import mlir


def reuse_mlir_contexts(programs: int = 100) -> None:
    """Let so many programs of a thread share an MLIR context, which JAX makes for each: making one
    takes longer than all else of lowering a small program. A context keeps the constants of its
    programs, so it does not stay for good."""
    own, make = threading.local(), mlir.make_ir_context

    def context() -> Any:
        if not hasattr(own, "places"):
            own.places = cycle(range(programs))
        if next(own.places) == 0:
            own.context = make()
        return own.context

    mlir.make_ir_context = context
