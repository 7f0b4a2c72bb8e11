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
class Program:
    """A step's shape and features, and the model that it runs."""

    bucket: Bucket
    features: Features
    shapes: StepShapes
    rebuild: Callable[[Leaves], Any]  # flat leaves -> the model; called only while tracing
    placement: Placement
    stages: Stages | None = None  # None: no pipeline

    @property
    def sampler(self) -> str | None:
        """The sampler's implementation: its kernels need unsharded logits, so a single device."""
        alone, kernels = self.placement.mesh.size == 1, self.shapes.attention
        return kernels if alone and kernels != "xla" else None
