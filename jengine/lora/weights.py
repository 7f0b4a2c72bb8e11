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
from jengine.lora.adapter import LowRank, in_group
from jengine.lora.peft_files import Place, Places, by_path, owners_of, places_of
from jengine.models.stages import LAYER_PATH, StageLayout
from jengine.quantization.scheme import Axes, WeightShape
from pallas_kernels.low_rank import COLUMNS, inputs_first

HEAD = "head"  # path of the output head, which runs only on rows that need logits


class StackShape(NamedTuple):
    """Shape and logical axes of one stacked array."""

    shape: tuple[int, ...]
    axes: Axes


@dataclass(frozen=True)
class LowRankWeight:
    """Stacked update of one weight: x @ down[slot] @ up[slot]. With groups, both have a group axis
    after the slots."""

    # One path per pipeline stage, None where a stage skips the layer slot; without stages a single
    # one.
    paths: tuple[str | None, ...]
    weight: WeightShape
    rank: int  # summed over fused modules
    slots: int
    # Index of the fused module that makes each output, i32 [*outputs].
    owners: np.ndarray = field(compare=False)
    inputs_first: bool = False  # whether down is [slots, *inputs, rank]
    is_table: bool = False  # an embedding: x are token ids, down has a row per token

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
        """down [slots, *groups, rank, *inputs] and up [slots, *groups, rank, *outputs], sharded
        like the weight. In a pipeline the first axis is [stages * slots]."""
        weight, rank, lead = self.weight, self.rank, (len(self.paths) * self.slots,)
        stage: Axes = ("stage" if self.is_staged else None,)
        if self.is_table:
            tokens, hidden = weight.axes
            return (
                StackShape((*lead, *weight.outputs, rank), (*stage, tokens, None)),
                StackShape((*lead, rank, *weight.inputs), (*stage, None, hidden)),
            )
        axes = weight.axes
        if weight.groups is not None:
            lead, stage, axes = (*lead, weight.groups), (*stage, axes[0]), axes[1:]
        inputs, outputs = axes[: len(weight.inputs)], axes[len(weight.inputs) :]
        down = StackShape((*lead, rank, *weight.inputs), (*stage, None, *inputs))
        if self.inputs_first:
            down = StackShape((*lead, *weight.inputs, rank), (*stage, *inputs, None))
        return down, StackShape((*lead, rank, *weight.outputs), (*stage, None, *outputs))

    @property
    def is_staged(self) -> bool:
        """Whether the arrays are split by pipeline stage."""
        return len(self.paths) > 1

    @property
    def of_slot(self) -> LowRankWeight:
        """The same with a single slot."""
        return replace(self, slots=1)

    def filled(self, parts: Mapping[str, LowRank], dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Lay out an adapter for one slot, [stages, ...]; zeros for weights it does not adapt."""
        lead = (len(self.paths),)
        down, up = (np.zeros((*lead, *stack.shape[1:]), dtype) for stack in self.stacks)
        for stage, path in enumerate(self.paths):
            for group in (None,) if self.weight.groups is None else range(self.weight.groups):
                part = None if path is None else parts.get(in_group(path, group))
                if part is not None:
                    where = (stage,) if group is None else (stage, group)
                    self._fill(part, down[where], up[where])
        return down, up

    def _fill(self, part: LowRank, down: np.ndarray, up: np.ndarray) -> None:
        places = self._places(part)
        inputs = self.weight.outputs if self.is_table else self.weight.inputs
        matrix = part.down.reshape(*inputs, part.rank)
        if self.inputs_first or self.is_table:
            down[..., places] = matrix
        else:
            down[places] = np.moveaxis(matrix, -1, 0)
        up[places] = part.up

    def _places(self, part: LowRank) -> np.ndarray:
        """Rank indices of an adapter within the slot: each fused module starts at its reserved
        range."""
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
    implementation: str = "cpu",
    layout: StageLayout | None = None,
) -> dict[str, LowRankWeight]:
    """Weights that adapters up to this rank may change, by path of their `Linear`; in a pipeline,
    by path of the layer slot.

    `modules` are last components of checkpoint module names (vLLM's lora_target_modules); None for
    all. `implementation`: of low-rank matmuls.
    """
    found: dict[str, LowRankWeight] = {}
    for own in by_path(wanted_places(places_of(config), modules)).values():
        place = own[0]
        paths = paths_in(layout, place.path)
        if not paths or place.path in found:  # experts share one stacked weight
            continue
        found[place.path] = LowRankWeight(
            paths, place.shape, rank * len(own), slots, owners_of(own),
            inputs_first(implementation, place.group is not None), place.is_table,
        )  # fmt: skip
    return found


def paths_in(layout: StageLayout | None, path: str) -> tuple[str | None, ...]:
    """Per stage, the path of the weight in this layer slot (None: the stage skips it). () for
    layers beyond a stage's slots."""
    match = LAYER_PATH.fullmatch(path)
    if layout is None or layout.num_stages == 1 or match is None:
        return (path,)
    if int(match[1]) >= layout.num_slots:
        return ()
    return tuple(layout.path_in(stage, path) for stage in range(layout.num_stages))


def wanted_places(places: Places, modules: Sequence[str] | None) -> Places:
    """Restrict places to the modules named in lora_target_modules. Raises ConfigError for an
    unknown name."""
    if modules is None:
        return places
    called = {name: module_names(name, own) for name, own in places.items()}
    known = {one for names in called.values() for one in names}
    unknown = sorted({*modules} - known)
    if unknown:
        raise ConfigError(
            f"lora_target_modules has {', '.join(unknown)}; this model's modules that can be "
            f"adapted are {', '.join(sorted(known))}."
        )
    return {name: own for name, own in places.items() if called[name] & {*modules}}


def module_names(name: str, places: Sequence[Place]) -> set[str]:
    """Names of a module in lora_target_modules: its last component and, for an expert's module, the
    component before the expert index."""
    *_, experts, _, last = ("", "", *name.split("."))
    return {last} if places[0].group is None else {last, experts}


def stack_dtype(wanted: str, config: ModelConfig) -> Any:
    return jnp.dtype(config.dtype if wanted == "auto" else wanted)
