"""How an operation picks its implementation: named ones fail loudly, None always works.

A table holds functions, and the names of those whose module needs a package that may be missing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any


def choose(
    operation: str, implementation: str | None, table: Mapping[str, Callable[..., Any] | str]
) -> Callable[..., Any]:
    """The function called `implementation`, or the plain XLA one for None."""
    found = table.get("xla" if implementation is None else implementation)
    if found is None:
        raise ValueError(
            f"{operation}(implementation={implementation!r}): not available here. "
            f"Available: {', '.join(sorted(table))}; None picks one."
        )
    if not isinstance(found, str):
        return found
    if missing := missing_for_triton():
        raise ValueError(f"{operation}(implementation={implementation!r}): {missing}")
    module, _, function = found.partition(":")
    return getattr(importlib.import_module(module), function)


def missing_for_triton() -> str | None:
    """What has to be installed before Triton kernels can be compiled or interpreted, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed. Install jengine[cuda12] or jengine[cuda13]."
    return None
