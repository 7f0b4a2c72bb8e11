"""The runner's own settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.variants.buckets import Ladders, StepShapes
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import ProgramList


@dataclass(frozen=True)
class RunnerConfig:
    """The runner's own settings."""

    shapes: StepShapes
    ladders: Ladders
    tiers: tuple[Features, ...]  # variants to compile in warm-up, cheapest first
    late_tiers: tuple[Features, ...]  # variants compiled when first needed
    cache_dtype: Any
    # The key of the weight schemes of a step; see `quantization.backends`.
    matmuls: str
    kv_cache_memory_bytes: int | None
    memory_share: float
    num_gpu_blocks_override: int | None
    demands: tuple[tuple[int, int], ...]  # per group: (most useful, at least) blocks
    enable_prefix_caching: bool = True
    warm_up: bool = True
    # Whether steps run once the largest program is compiled, and the others in the background.
    early_start: bool = False
    strict: bool = False
    choices: CompilerChoices = field(default_factory=CompilerChoices)

    @property
    def programs(self) -> ProgramList:
        """What is compiled."""
        return ProgramList(self.ladders, self.tiers, self.shapes.one_segment)
