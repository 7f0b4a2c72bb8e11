"""Settings of a runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jengine.logits_processor import LogitsProcessor
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.variants.buckets import Ladders, StepShapes
from jengine.runner.variants.features import Features
from jengine.runner.variants.program_list import ProgramList


@dataclass(frozen=True)
class AdapterConfig:
    """Capacity of a step's LoRA slots."""

    slots: int
    rank: int  # of the device arrays
    most_rank: int  # largest rank of an adapter
    dtype: str  # auto: the model's
    modules: tuple[str, ...] | None = None  # modules that may be adapted; None: all


@dataclass(frozen=True)
class RunnerConfig:
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
    # Serve once the largest program is compiled; compile the others in the background.
    early_start: bool = False
    strict: bool = False
    # Classes of logits processors that run on the host; with any, steps are split.
    host_processors: tuple[type[LogitsProcessor], ...] = ()
    # Width of prompt embeddings; 0: not enabled.
    given_embeds: int = 0
    # Rows of the device's array of encoder outputs, and the encoder's buckets of patches.
    encoder_tokens: int = 0
    patch_sizes: tuple[int, ...] = ()
    takes_images: bool = False  # whether to compile programs for prompts with images
    choices: CompilerChoices = field(default_factory=CompilerChoices)
    adapters: AdapterConfig | None = None  # None: no LoRA

    @property
    def programs(self) -> ProgramList:
        """All programs to compile."""
        return ProgramList(
            self.ladders, self.tiers, self.shapes, self.takes_images,
            splits=bool(self.host_processors),
        )  # fmt: skip
