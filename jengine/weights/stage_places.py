"""Places parameters on pipeline stages.

In: a parameter's path, logical axes and values. Out: a placed array. With one stage, layers differ
only in whether they are offloaded to the host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
from jax.sharding import NamedSharding

from jengine.errors import UnsupportedFeature
from jengine.models.stages import LAYER_PATH, StageLayout
from jengine.models.vision_language import TOWER_PATH
from sharding.axes import Axes
from sharding.placement import HOST, Placement, Readable


@dataclass(frozen=True)
class StagePlaces:
    """Placement of each parameter of a model."""

    whole: Placement
    layout: StageLayout
    # Layers offloaded to host memory.
    on_host: frozenset[int] = frozenset()
    # Whether the vision tower is replicated, so that each device encodes other images.
    whole_towers: bool = False

    def __call__(self, path: str, axes: Axes, values: Readable) -> jax.Array:
        if isinstance(values, jax.Array):
            self.refuse_several_processes(f"{path} as a JAX array")
        return self.of(path)(path, axes, values)

    def sharding(self, path: str, axes: Axes, shape: tuple[int, ...]) -> NamedSharding:
        return self.of(path).sharding(axes, shape)

    def running(self, path: str) -> Placement:
        """Placement of a parameter inside a step."""
        if self._is_whole(path):
            return self.whole.apart
        in_stage = self.layout.num_stages > 1 and LAYER_PATH.fullmatch(path) is not None
        if self.whole.joint:
            return self.whole.in_replica()
        return self.whole.in_stage() if in_stage else self.whole

    def _is_whole(self, path: str) -> bool:
        return self.whole_towers and path.startswith(TOWER_PATH)

    def refuse_several_processes(self, what: str) -> None:
        """Raise UnsupportedFeature in pipelines over several processes, where placing `what` would
        need transfers between them."""
        processes = self.whole.processes
        if self.layout.num_stages > 1 and len(processes) > 1:
            raise UnsupportedFeature(
                f"{what}, with pipeline_parallel_size={self.layout.num_stages} over "
                f"{len(processes)} processes, is not built yet. Give every process the parameters "
                "as NumPy arrays, or as safetensors."
            )

    def of(self, path: str) -> Placement:
        """Placement of a parameter at rest."""
        layer = layer_of(path)
        if self._is_whole(path):
            return self.whole.apart
        if layer is None:
            return self.whole
        if layer in self.on_host:
            return replace(self.whole, memory=HOST)
        if self.layout.num_stages == 1:
            return self.whole
        return self.whole.stage(self.layout.stage_of(layer))

    @property
    def all_on_devices(self) -> StagePlaces:
        """These placements without offloading."""
        return replace(self, on_host=frozenset())


def layer_of(path: str) -> int | None:
    """Layer index of a parameter path, or None."""
    match = LAYER_PATH.fullmatch(path)
    return None if match is None else int(match[1])
