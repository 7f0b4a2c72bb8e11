"""The rows of a step by slot, as all functions of this package take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int


class SlotOrder(NamedTuple):
    """Which slot each row has, and what an implementation needs besides."""

    slots: Int[Array, " rows"]  # from 1 on; 0: none
    groups: Any = None  # rows sorted by slot, those without one last
