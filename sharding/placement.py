"""Meshes, and arrays put where their logical axes say."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from sharding.axes import partition_spec


def one_device_mesh(device: jax.Device | None = None) -> Mesh:
    """A mesh of one device, so that one device is not a special case anywhere else."""
    device = jax.devices()[0] if device is None else device
    return Mesh(np.array([device]), ("tp",))


@dataclass(frozen=True)
class Placement:
    """Puts arrays on a mesh."""

    mesh: Mesh

    def sharding(self, axes: tuple[str | None, ...]) -> NamedSharding:
        """Where an array with these logical axes lies."""
        return NamedSharding(self.mesh, partition_spec(axes))

    def __call__(
        self, path: str, axes: tuple[str | None, ...], values: np.ndarray | jax.Array
    ) -> jax.Array:
        """Place one parameter, without a copy if it lies there already; `path` is for errors."""
        try:
            return jax.device_put(values, self.sharding(axes))
        except ValueError as error:
            raise ValueError(f"{path} {values.shape} does not fit its mesh: {error}") from error
