"""Places parameters on pipeline stages: each layer on its stage's devices only.

In: a parameter's path, logical axes and values. Out: a placed array. With one stage,
the placement alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding

from jengine.errors import UnsupportedFeature
from jengine.models.stages import LAYER_PATH, StageLayout
from sharding.axes import Axes
from sharding.placement import Placement, Readable


@dataclass(frozen=True)
class StagePlaces:
    """Puts parameters where they belong."""

    whole: Placement
    layout: StageLayout

    def __call__(self, path: str, axes: Axes, values: Readable) -> jax.Array:
        """Place one parameter."""
        if isinstance(values, jax.Array):
            self.refuse_several_processes(f"{path} as a JAX array")
        return self.of(path)(path, axes, values)

    def sharding(self, path: str, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        """The sharding of one parameter."""
        return self.of(path).sharding(axes, shape)

    def running(self, path: str) -> Placement:
        """The placement that a step sees where it uses a parameter."""
        in_stage = self.layout.num_stages > 1 and LAYER_PATH.fullmatch(path) is not None
        return self.whole.in_stage() if in_stage else self.whole

    def refuse_several_processes(self, what: str) -> None:
        """Some arrays would have to reach processes that hold no part of their stage."""
        processes = self.whole.processes
        if self.layout.num_stages > 1 and len(processes) > 1:
            raise UnsupportedFeature(
                f"{what}, with pipeline_parallel_size={self.layout.num_stages} over "
                f"{len(processes)} processes, is not built yet. Give every process the parameters "
                "as NumPy arrays, or as safetensors."
            )

    def of(self, path: str) -> Placement:
        """The placement that a parameter follows."""
        match = LAYER_PATH.fullmatch(path)
        if match is None or self.layout.num_stages == 1:
            return self.whole
        return self.whole.stage(self.layout.stage_of(int(match[1])))
