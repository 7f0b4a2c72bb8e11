"""The static arguments of one compiled step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jengine.models.stages import StageLayout
from jengine.runner.step.leaves import Leaves
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features
from sharding.placement import Placement


@dataclass(frozen=True)
class Stages:
    """The pipeline stages of a model."""

    layout: StageLayout
    staged: tuple[bool, ...]  # whether a leaf is split by stage
    # Activations between stages are laid out for this bucket: [decode rows | prefill tokens].
    largest: Bucket


@dataclass(frozen=True)
class GuesserProgram:
    """The model whose guesses are the drafts of the next step; its leaves follow the others."""

    method: Callable[[Any], Any]  # the model -> a `guessing.Guesser`
    rebuild: Callable[[Leaves], Any]  # its leaves -> the model
    first_leaf: int
    first_layer: int  # the number of its first layer among all layers with a cache


@dataclass(frozen=True)
class Program:
    """A step's shape and features, and the model that it runs."""

    bucket: Bucket
    features: Features
    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]  # flat leaves -> the model; called only while tracing
    placement: Placement
    stages: Stages | None = None  # None: no pipeline
    guesser: GuesserProgram | None = None  # None: steps make no guesses

    def models(self, leaves: Leaves) -> tuple[Any, Any]:
        """The model, and what guesses its tokens, which may be None."""
        if self.guesser is None:
            return self.rebuild(leaves), None
        first = self.guesser.first_leaf
        return self.rebuild(leaves[:first]), self.guesser.method(
            self.guesser.rebuild(leaves[first:])
        )

    @property
    def sampler(self) -> str | None:
        """The sampler's implementation: its kernels need unsharded logits, so a single device."""
        alone, kernels = self.placement.mesh.size == 1, self.shapes.attention
        return kernels if alone and kernels != "xla" else None
