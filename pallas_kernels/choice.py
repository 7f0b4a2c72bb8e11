"""How an operation picks its implementation: named ones fail loudly, None always works."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])


def choose(operation: str, implementation: str | None, table: Mapping[str, F]) -> F:
    """The function called `implementation`, or the plain XLA one for None."""
    if implementation is None:
        return table["xla"]
    if implementation not in table:
        raise ValueError(
            f"{operation}(implementation={implementation!r}): not available here. "
            f"Available: {', '.join(sorted(table))}; None picks one."
        )
    return table[implementation]
