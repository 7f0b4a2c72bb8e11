"""Interventions at tap points whose arrays are operands of the step: Patch, Steer.

In: arrays and positions as users give them. Out: a function and its arrays. Interventions of one
kind at one point share a compiled program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from jengine.errors import RequestError
from jengine.runner.variants.tap_sets import Intervention
from pallas_kernels.shapes import next_power_of_two

if TYPE_CHECKING:  # shapes are for readers and type checkers
    from jaxtyping import Float, Int32

NOWHERE = -1  # a position that no token has


class Applied(NamedTuple):
    """A function at a tap point, and the pytree of its arrays."""

    function: Intervention
    arrays: Any


@dataclass(frozen=True, eq=False)
class Patch:
    """Replacement activations of some tokens at a tap point.

    `llm.generate(prompt, intervene={"layers.3.output": Patch(values, [4])})` is compiled once for
    the point; other values and positions run in the same program.

    Args:
        values: float [positions, width], or [width] for each of the positions, such as
            `output.captured["layers.3.output"][4]`.
        positions: one or several positions, from 0; generated tokens follow the prompt.

    Raises:
        RequestError: a position is negative or given twice, or there is not one vector for each.
    """

    values: Any
    positions: int | Sequence[int]

    def __post_init__(self) -> None:
        places = np.atleast_1d(np.asarray(self.positions))
        integers = places.ndim == 1 and len(places) and np.issubdtype(places.dtype, np.integer)
        if not integers or places.min() < 0 or len(set(places.tolist())) < len(places):
            raise RequestError(
                f"Patch(positions={self.positions!r:.60}): expected one or several different "
                "tokens of the prompt, counted from 0."
            )
        shape = np.shape(self.values)
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[0] != len(places)):
            raise RequestError(
                f"Patch: values have shape {shape}; expected ({len(places)}, width), a vector for "
                "each position, or (width,)."
            )

    @property
    def width(self) -> int:
        return np.shape(self.values)[-1]

    @property
    def applied(self) -> Applied:
        """Return the function and its arrays, padded to a power of two of positions."""
        given = np.atleast_1d(np.asarray(self.positions, np.int32))
        places = np.full(next_power_of_two(len(given)), NOWHERE, np.int32)
        places[: len(given)] = given
        values = jnp.broadcast_to(jnp.asarray(self.values, jnp.float32), (len(given), self.width))
        rows = jnp.zeros((len(places), self.width), jnp.float32).at[: len(given)].set(values)
        return Applied(patched, (rows, places))


@dataclass(frozen=True, eq=False)
class Steer:
    """A vector added to the activations of every token, prompt and answer, at a tap point.

    `intervene={"layers.*.output": Steer(vector, 4.0)}` is compiled once for the points; other
    vectors and scales run in the same program.

    Args:
        vector: float [width].
        scale: factor of the vector.

    Raises:
        RequestError: `vector` is not one vector, or `scale` not one number.
    """

    vector: Any
    scale: float = 1.0

    def __post_init__(self) -> None:
        if np.ndim(self.vector) != 1 or np.ndim(self.scale) != 0:
            raise RequestError(
                f"Steer: the vector has shape {np.shape(self.vector)} and the scale "
                f"{np.shape(self.scale)}; expected (width,) and one number."
            )

    @property
    def width(self) -> int:
        return np.shape(self.vector)[0]

    @property
    def applied(self) -> Applied:
        vector = jnp.asarray(self.vector, jnp.float32)
        return Applied(steered, (vector, jnp.asarray(self.scale, jnp.float32)))


@dataclass(frozen=True)
class PatchOfGrid:
    """One tap point of a patch grid: replaces a token's activation if its request patches this
    point at its position. Arrays per token: the request's point, position, and value."""

    point: int

    def __call__(
        self,
        values: Float[Array, "tokens width"],
        positions: Int32[Array, " tokens"],
        arrays: tuple[
            Int32[Array, " tokens"], Int32[Array, " tokens"], Float[Array, "tokens width"]
        ],
    ) -> Float[Array, "tokens width"]:
        points, places, given = arrays
        is_here = (points == self.point) & (places == positions)
        return jnp.where(is_here[:, None], given, values)


def patched(
    values: Float[Array, "tokens width"],
    positions: Int32[Array, " tokens"],
    arrays: tuple[Float[Array, "places width"], Int32[Array, " places"]],
) -> Float[Array, "tokens width"]:
    """Replace the values at the patched positions."""
    given, places = arrays
    is_here = positions[:, None] == places[None, :]
    return jnp.where(is_here.any(1)[:, None], given[is_here.argmax(1)], values)


def steered(
    values: Float[Array, "tokens width"], arrays: tuple[Float[Array, " width"], Float[Array, ""]]
) -> Float[Array, "tokens width"]:
    """Add a Steer's vector."""
    vector, scale = arrays
    return values + scale * vector[None, :]
