"""Assigns layers to pipeline stages.

In: a ModelConfig and a number of stages. Out: per stage equally many slots, each with a layer or
empty. All stages run one program, so the layers in a slot must have equal configs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from jengine.config import LayerConfig, ModelConfig
from jengine.errors import ConfigError, UnsupportedFeature

LAYER_PATH = re.compile(r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True)
class StageLayout:
    """Layer index in each slot of each stage; None: the slot is skipped. Slot i is built like layer
    i of the model."""

    stages: tuple[tuple[int | None, ...], ...]

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def num_slots(self) -> int:
        """Layers in a stage's program, including skipped ones."""
        return len(self.stages[0])

    @property
    def runs(self) -> tuple[tuple[bool, ...], ...]:
        """Whether each slot of each stage holds a layer."""
        return tuple(tuple(layer is not None for layer in slots) for slots in self.stages)

    @property
    def is_even(self) -> bool:
        return all(map(all, self.runs))

    def path_in(self, stage: int, path: str) -> str | None:
        """Translate a parameter path from the slot's layer to this stage's layer in that slot; None
        if the stage skips the slot."""
        match = LAYER_PATH.fullmatch(path)
        assert match is not None, f"{path} is not in a layer"
        layer = self.stages[stage][int(match[1])]
        return None if layer is None else f"layers.{layer}.{match[2]}"

    def stage_of(self, layer: int) -> int:
        return next(stage for stage, slots in enumerate(self.stages) if layer in slots)


def stage_layout(config: ModelConfig, stages: int) -> StageLayout:
    """The layout with the fewest slots; each stage has at least one layer. Raises ConfigError,
    UnsupportedFeature."""
    count = len(config.layers)
    if not 1 <= stages <= count:
        raise ConfigError(
            f"pipeline_parallel_size={stages}: expected 1 to {count}, the number of layers of this "
            "model."
        )
    if stages > 1 and (config.reads_across or config.layer_inputs is not None):
        raise UnsupportedFeature(
            f"pipeline_parallel_size={stages} with {config.architecture}: its layers read what is "
            "made or kept in earlier ones, which are on other devices. Use tensor_parallel_size."
        )
    slots = -(-count // stages)
    while (found := laid_out(config.layers, stages, slots)) is None:
        slots += 1  # ends at `count`: then every layer has its own slot
    return StageLayout(found)


def laid_out(
    kinds: tuple[LayerConfig, ...], stages: int, slots: int
) -> tuple[tuple[int | None, ...], ...] | None:
    """Fill each stage's slots with the next matching layers; None if layers remain."""
    rows: list[tuple[int | None, ...]] = []
    layer = 0
    for stage in range(stages):
        end = len(kinds) - (stages - 1 - stage)  # leaves one layer for each later stage
        row: list[int | None] = []
        for kind in kinds[:slots]:
            fits = layer < end and kinds[layer] == kind
            row.append(layer if fits else None)
            layer += fits
        rows.append(tuple(row))
    return tuple(rows) if layer == len(kinds) else None
