"""Start-up log lines of an engine: cache, weight copies, stages.

In: resolved sizes. Out: log lines, some in vLLM's words, which users search for.
"""

from __future__ import annotations

import logging

from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.models.stages import StageLayout

logger = logging.getLogger(__name__)


def log_stages(layout: StageLayout, layers: int) -> None:
    """Log the layers of each pipeline stage."""
    if layout.num_stages > 1:
        slots = layout.num_stages * layout.num_slots
        logger.info("%d layers in %d stages of %d slots, %d of which stay empty",
                    layers, layout.num_stages, layout.num_slots, slots - layers)  # fmt: skip


def log_copies(count: int, *, live: bool) -> None:
    """Log the bytes of packed weight copies, `count`. `live`: the user's arrays stay in memory
    too."""
    if not count:
        return
    beside = (
        " beside the given arrays; pack_weights=False multiplies from those, slower" if live else ""
    )
    logger.info("Weights packed for the CPU kernels: %.2f GB%s", count / 1e9, beside)


def log_long_rotation(config: ModelConfig, schedule: ScheduleConfig) -> None:
    """Warn if LongRoPE's long factors apply, which degrade answers to short prompts."""
    if config.usual_context < min(config.longest_context, schedule.max_model_len):
        logger.warning(
            "Using LongRoPE's factors for sequences of up to %d tokens, for all sequences. "
            "Answers to short ones are better with max_model_len=%d or less.",
            schedule.max_model_len, config.usual_context,
        )  # fmt: skip


def log_capacity(
    cache: CacheConfig, schedule: ScheduleConfig, replicas: int, platform: str
) -> None:
    """Log the cache's capacity in tokens, in vLLM's words."""
    tokens = (cache.fewest_blocks - 1) * cache.block_size
    if replicas > 1:
        logger.info("%d data-parallel replicas, each with:", replicas)
    logger.info("%s KV cache size: %s tokens", platform.upper(), f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{schedule.max_model_len:,}", tokens / schedule.max_model_len,
    )  # fmt: skip
