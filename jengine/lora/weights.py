"""Shapes of the stacked adapter arrays, per adaptable weight.

In: a model's config. Out: shapes, and adapters laid out in them. Must not know devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jengine.config import ModelConfig
from jengine.errors import ConfigError
from jengine.lora.adapter import LowRank
from jengine.lora.peft_files import Places, by_path, owners_of, places_of
from jengine.models.stages import LAYER_PATH, StageLayout
from jengine.quantization.scheme import Axes, WeightShape
from pallas_kernels.low_rank import COLUMNS

HEAD = "head"  # the path of the output head, which sees other rows than the layers


class StackShape(NamedTuple):
    """Shape and logical axes of one stacked array."""

    shape: tuple[int, ...]
    axes: Axes


@dataclass(frozen=True)
class LowRankWeight:
    """Stacked update of one weight: x @ down[slot] @ up[slot]."""

    # Its path; in a pipeline one per stage, None where a stage skips the layer's slot.
    paths: tuple[str | None, ...]
    weight: WeightShape
    rank: int  # the sum over modules of a checkpoint that share the weight
    slots: int
    # The number of the module that makes each output, i32 [*outputs].
    owners: np.ndarray = field(compare=False)
    inputs_first: bool = False  # whether down is [slots, *inputs, rank]
    is_table: bool = False  # an embedding: x are tokens, whose rows of down are taken

    @property
    def module_rank(self) -> int:
        """Rank reserved per fused module."""
        return self.rank // (int(self.owners.max()) + 1)

    @property
    def ranges(self) -> np.ndarray:
        """For each COLUMNS outputs, the half-open range of ranks with nonzero entries, i32 [blocks,
        2]."""
        flat, rank = self.owners.reshape(-1), self.module_rank
        blocks = [flat[at : at + COLUMNS] for at in range(0, len(flat), COLUMNS)]
        found = [(one.min() * rank, (one.max() + 1) * rank) for one in blocks]
        return np.array(found, np.int32)

    @property
    def stacks(self) -> tuple[StackShape, StackShape]:
        """down [slots, rank, *inputs] and up [slots, rank, *outputs], sharded like the weight. The
        first axis has the slots of all stages, one after the other."""
        weight, count, slots = self.weight, len(self.weight.inputs), len(self.paths) * self.slots
        stage = "stage" if self.is_staged else None
        if self.is_table:
            tokens, hidden = weight.axes
            return (
                StackShape((slots, *weight.outputs, self.rank), (stage, tokens, None)),
                StackShape((slots, self.rank, *weight.inputs), (stage, None, hidden)),
            )
        inputs, outputs = weight.axes[:count], weight.axes[count:]
        down = StackShape((slots, self.rank, *weight.inputs), (stage, None, *inputs))
        if self.inputs_first:
            down = StackShape((slots, *weight.inputs, self.rank), (stage, *inputs, None))
        return down, StackShape((slots, self.rank, *weight.outputs), (stage, None, *outputs))

    @property
    def is_staged(self) -> bool:
        """Whether every pipeline stage has its own part of the arrays."""
        return len(self.paths) > 1

    @property
    def of_slot(self) -> LowRankWeight:
        """The arrays of one slot alone."""
        return replace(self, slots=1)

    def filled(self, parts: Mapping[str, LowRank], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Lay an adapter out for one slot, [stages, ...]; zeros where it changes nothing."""
        own = [None if path is None else parts.get(path) for path in self.paths]
        down, up = zip(*(self._filled(part, dtype) for part in own), strict=True)
        return np.stack(down), np.stack(up)

    def _filled(self, part: LowRank | None, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        down, up = (np.zeros(stack.shape[1:], dtype) for stack in self.stacks)
        if part is None:
            return down, up
        places = self._places(part)
        inputs = self.weight.outputs if self.is_table else self.weight.inputs
        matrix = part.down.reshape(*inputs, part.rank)
        if self.inputs_first or self.is_table:
            down[..., places] = matrix
        else:
            down[places] = np.moveaxis(matrix, -1, 0)
        up[places] = part.up
        return down, up

    def _places(self, part: LowRank) -> np.ndarray:
        """Rank positions of an adapter in the slot: each module's begin at its reserved range."""
        ranks = part.ranks or (part.rank,)
        firsts = np.arange(len(ranks)) * self.module_rank
        return np.concatenate(
            [first + np.arange(rank) for first, rank in zip(firsts, ranks, strict=True)]
        )


def adapted_weights(
    config: ModelConfig,
    rank: int,
    slots: int,
    modules: Sequence[str] | None = None,
    *,
    inputs_first: bool = False,
    layout: StageLayout | None = None,
) -> dict[str, LowRankWeight]:
    """Weights that adapters of this rank may change, by path of their `Linear`; in a pipeline of
    this layout, those of every stage by the path of its slot.

    `modules` are last components of checkpoint module names (vLLM's lora_target_modules); None for
    all.
    """
    found: dict[str, LowRankWeight] = {}
    for path, own in by_path(wanted_places(places_of(config), modules)).items():
        place, owners, paths = own[0], owners_of(own), paths_in(layout, path)
        if paths:
            found[path] = LowRankWeight(
                paths, place.shape, rank * len(own), slots, owners, inputs_first, place.is_table
            )
    return found


def paths_in(layout: StageLayout | None, path: str) -> tuple[str | None, ...]:
    """The weights that stages have where this one is; () for one that is in no stage's first
    layers."""
    match = LAYER_PATH.fullmatch(path)
    if layout is None or layout.num_stages == 1 or match is None:
        return (path,)
    if int(match[1]) >= layout.num_slots:
        return ()
    return tuple(layout.path_in(stage, path) for stage in range(layout.num_stages))


def wanted_places(places: Places, modules: Sequence[str] | None) -> Places:
    """Restrict to named modules. Raises ConfigError for an unknown name."""
    if modules is None:
        return places
    last = {name: name.rpartition(".")[2] for name in places}
    unknown = sorted({*modules} - {*last.values()})
    if unknown:
        raise ConfigError(
            f"lora_target_modules has {', '.join(unknown)}; this model's modules that can be "
            f"adapted are {', '.join(sorted({*last.values()}))}."
        )
    return {name: own for name, own in places.items() if last[name] in modules}


def stack_dtype(wanted: str, config: ModelConfig) -> Any:
    return jnp.dtype(config.dtype if wanted == "auto" else wanted)
