"""Rows of a step by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from jax import Array

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Int


class SlotOrder(NamedTuple):
    """The slot of each row, and an implementation's own sort of the rows in `groups`."""

    slots: Int[Array, " rows"]  # from 1 on; 0: none
    groups: Any = None  # rows sorted by slot, those without one last
