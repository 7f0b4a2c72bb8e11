"""What the log says of an engine that starts: its cache, copies of its weights, its stages.

In: sizes that were settled. Out: lines of the log, some of which people search for in vLLM's.
"""

from __future__ import annotations

import logging

from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.models.stages import StageLayout

logger = logging.getLogger(__name__)


def log_stages(layout: StageLayout, layers: int) -> None:
    """Say how layers are spread over the stages of a pipeline."""
    if layout.num_stages > 1:
        slots = layout.num_stages * layout.num_slots
        logger.info("%d layers in %d stages of %d slots, %d of which stay empty",
                    layers, layout.num_stages, layout.num_slots, slots - layers)  # fmt: skip


def log_copies(count: int, *, live: bool) -> None:
    """Log the bytes of packed weight copies. `live`: the user's own arrays stay in memory as
    well."""
    if not count:
        return
    beside = (
        " beside the given arrays; pack_weights=False multiplies from those, slower" if live else ""
    )
    logger.info("Weights packed for the CPU kernels: %.2f GB%s", count / 1e9, beside)


def log_long_rotation(config: ModelConfig, schedule: ScheduleConfig) -> None:
    """Say what long contexts cost short ones where the model rotates them differently."""
    if config.usual_context < min(config.longest_context, schedule.max_model_len):
        logger.warning(
            "Using LongRoPE's factors for sequences of up to %d tokens, for all sequences. "
            "Answers to short ones are better with max_model_len=%d or less.",
            schedule.max_model_len, config.usual_context,
        )  # fmt: skip


def log_capacity(
    cache: CacheConfig, schedule: ScheduleConfig, replicas: int, platform: str
) -> None:
    """Say how many tokens the cache holds, in vLLM's words."""
    tokens = (cache.fewest_blocks - 1) * cache.block_size
    if replicas > 1:
        logger.info("%d data-parallel replicas, each with:", replicas)
    logger.info("%s KV cache size: %s tokens", platform.upper(), f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{schedule.max_model_len:,}", tokens / schedule.max_model_len,
    )  # fmt: skip
