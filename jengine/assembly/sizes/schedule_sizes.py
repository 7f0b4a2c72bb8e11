"""Limits of a step and of concurrent requests.

In: the user's settings, the model's config and the device's defaults. Out: a ScheduleConfig.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.schedule_args import ScheduleSettings
from jengine.assembly.settings.step_args import StepSettings
from jengine.assembly.sizes.determinism import needs_one_segment
from jengine.assembly.sizes.device_defaults import (
    DETERMINISTIC_TOKENS,
    JOINED_TILE,
    SHORTEST_TILE,
    DeviceDefaults,
    block_tokens,
    device_defaults,
)
from jengine.assembly.sizes.encoder_sizes import encoder_tokens
from jengine.assembly.sizes.ladders import rungs
from jengine.config import ModelConfig, ScheduleConfig, decode_rows
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.runner.step.attention_backend import BASES, available_backend
from jengine.runner.variants.buckets import FEWEST_DECODE_ROWS
from jengine.sampling.row_parameters import row_bytes
from pallas_kernels.decode_attention import CASCADING, least_shared
from pallas_kernels.prefill_attention import JOINING, tokens_of_tile

logger = logging.getLogger(__name__)
# Default memory for sampler state (penalties, biases, masks), and its minimum rows; a row takes
# about 1 MB with a vocabulary of 128,000.
SAMPLER_POOL_BYTES = 264 * 1024**2
FEWEST_ADJUSTED = 8
# Concurrent prompts of a pooling model, which have little state.
POOLED_ROWS = 64


def schedule_config(
    asked: Groups,
    config: ModelConfig,
    defaults: DeviceDefaults | None = None,
    *,
    penalises: bool = False,
    devices: int = 1,
    stages: int | None = None,
) -> ScheduleConfig:
    """Limits of a step. `defaults` None: those of JAX's default backend.

    `penalises`: the generation config gives requests penalties. `devices`: per replica. `stages`:
    of the pipeline; None: by the settings.
    """
    one_segment = needs_one_segment(asked.steps, config, devices)
    joins = joins_tiles(asked, config, defaults, stages or asked.parallel.pipeline_parallel_size)
    shared = shared_blocks(asked, config, defaults)
    defaults = defaults or device_defaults()
    run = 1 if one_segment else prefill_tile(config, defaults)
    tile = JOINED_TILE if joins and run > 1 else run
    pooling = config.pooling
    chunked = asked.schedule.enable_chunked_prefill and not config.sees_ahead
    own_length = pooling.max_length if pooling and pooling.max_length else config.usual_context
    max_model_len = asked.schedule.max_model_len or min(own_length, config.usual_context)
    if max_model_len > config.longest_context:
        raise ConfigError(
            f"max_model_len={max_model_len} is beyond the {config.longest_context} positions that "
            "this model was made for. Lower it."
        )
    if pooling is not None:
        refuse_for_pooling(asked, one_segment=one_segment)
    if max_model_len < 2:
        raise ConfigError("max_model_len=1: expected at least 2, a prompt token and an answer.")
    usual_rows = defaults.max_num_seqs if pooling is None else POOLED_ROWS
    rows = asked.schedule.max_num_seqs or usual_rows
    drafts = asked.schedule.drafts
    most_drafts = 0 if drafts is None else drafts.num_speculative_tokens
    return ScheduleConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=_batched_tokens(
            asked, FEWEST_DECODE_ROWS if pooling else decode_rows(rows, most_drafts), max_model_len,
            tile,
            DETERMINISTIC_TOKENS if one_segment else defaults.max_num_batched_tokens,
            chunked=chunked,
        ),
        max_model_len=max_model_len,
        policy=asked.schedule.scheduling_policy,
        enable_chunked_prefill=chunked,
        long_prefill_token_threshold=asked.schedule.long_prefill_token_threshold,
        prefill_tile=tile,
        joined_tiles=run // tile,
        shared_blocks=shared,
        num_scheduler_steps=_steps_at_once(asked.schedule, one_segment),
        max_adjusted_seqs=1 if pooling else _adjusted_seqs(
            asked.steps, rows, penalises, row_bytes(config.vocab_size, max_model_len, most_drafts)
        ),
        one_segment=one_segment,
        vocab_size=config.vocab_size,
        speculative=drafts,
        max_loras=0 if asked.adapters is None else asked.adapters.max_loras,
        encoder_tokens=encoder_tokens(asked, config, max_model_len),
        answer_room=0 if pooling else 1,
    )  # fmt: skip


def refuse_for_pooling(asked: Groups, *, one_segment: bool) -> None:
    """Raise for generation settings that pooling engines do not support."""
    executor, stages = asked.parallel.executor, asked.parallel.pipeline_parallel_size or 1
    others = {
        **asked.in_use("speculative_config", "num_scheduler_steps"),
        f"pipeline_parallel_size={stages}": stages > 1,
        "deterministic=True where XLA multiplies": one_segment,
        **asked.in_use("enable_prompt_embeds", "enable_lora"),
        "logits_processors": bool(asked.steps.logits_processors),
        f"executor={executor!r}": executor not in ("auto", "local", "multihost"),
    }
    for name, is_asked in others.items():
        if is_asked:
            raise UnsupportedFeature(f"{name} with a pooling model is not built; leave {name} out.")


def _adjusted_seqs(asked: StepSettings, rows: int, penalises: bool, row_size: int) -> int:
    """Maximum concurrent requests with penalties, biases or masks, whose state takes `row_size`
    bytes each: all rows if that fits the sampler pool or `penalises` is set."""
    given = asked.compilation.get("max_adjusted_seqs")
    if given is not None:
        if type(given) is not int or given < 1:
            raise ConfigError(
                f"compilation_config['max_adjusted_seqs']={given!r}: expected a positive integer."
            )
        return min(given, rows)
    if penalises:
        return rows
    fit = SAMPLER_POOL_BYTES // row_size
    most = max(1 << max(fit, 1).bit_length() - 1, FEWEST_ADJUSTED)
    if most < rows:
        logger.info("At most %d of %d requests at once may have penalties, biases or masks; "
                    "compilation_config['max_adjusted_seqs'] is for more", most, rows)  # fmt: skip
    return min(most, rows)


def _steps_at_once(asked: ScheduleSettings, one_segment: bool) -> int:
    """Validated number of decode steps per device call."""
    steps = asked.num_scheduler_steps
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"num_scheduler_steps={steps!r}: expected an integer of at least 1.")
    if steps > 1 and one_segment:
        raise ConfigError(
            f"num_scheduler_steps={steps} with deterministic=True, which computes everything here "
            "in one program that runs one step. Leave one of them out."
        )
    return steps


def prefill_tile(config: ModelConfig, defaults: DeviceDefaults) -> int:
    """Tile length of prefill attention, to which chunks are padded (if tiles are joined, to parts
    of it)."""
    if not defaults.full_tiles:
        return SHORTEST_TILE
    return max(SHORTEST_TILE, *(tokens_of_tile(layer.mixer.group) for layer in config.layers))


def joins_tiles(
    asked: Groups, config: ModelConfig, defaults: DeviceDefaults | None, stages: int | None
) -> bool:
    """Whether attention joins short tiles of prefill tokens. Not in pipelines, where each tile has
    a block table in the packed input; nor with recurrent layers, which pass a state from tile to
    tile; nor if neighbouring tiles are on different devices."""
    if (
        (stages or 1) > 1
        or config.has_recurrent
        or asked.parallel.prefill_context_parallel_size > 1
    ):
        return False
    # In long tiles, short prompts of encoders would be mostly padding.
    by_itself = ("cpu",) if config.sees_ahead else ()
    return attention_is_of((*JOINING, *by_itself), asked.steps, config, defaults)


def shared_blocks(asked: Groups, config: ModelConfig, defaults: DeviceDefaults | None) -> int:
    """Minimum common prefix of decode rows for cascade attention, in blocks; 0: never used."""
    if asked.steps.deterministic or asked.steps.disable_cascade_attn:
        return 0
    if not attention_is_of(CASCADING, asked.steps, config, defaults):
        return 0
    return -(-least_shared() // block_tokens(asked))


def attention_is_of(
    names: Sequence[str], asked: StepSettings, config: ModelConfig, defaults: DeviceDefaults | None
) -> bool:
    """Whether attention uses one of these implementations."""
    if defaults is not None:  # the device may be absent
        wanted = asked.attention_backend
        return defaults.full_tiles and BASES.get(wanted, wanted) in ("auto", *names)
    return available_backend(asked.attention_backend, config.groups)[0] in names


def _batched_tokens(
    asked: Groups, rows: int, max_model_len: int, tile: int, usual: int, *, chunked: bool
) -> int:
    """Token budget of a step. Always has room for one tile beside all decode rows, so that prefill
    continues in a full engine."""
    rounded_length = -(-max_model_len // tile) * tile
    least = rows + tile
    if asked.schedule.max_num_batched_tokens:
        given = asked.schedule.max_num_batched_tokens
        if not chunked and given < rounded_length:
            raise ConfigError(
                f"max_num_batched_tokens={given} without chunked prefill: a prompt of up "
                f"to {max_model_len} tokens would never fit. Raise it to {rounded_length}, lower "
                "max_model_len, or enable chunked prefill."
            )
        if given < least:
            logger.info("max_num_batched_tokens=%d is raised to %d: %d decodes and one tile of %d",
                        given, least, rows, tile)  # fmt: skip
        return max(given, least)
    if not chunked:
        # Models that need whole prompts have steps of the default size too.
        return max(rounded_length, least, usual if asked.schedule.enable_chunked_prefill else 0)
    ladder = asked.steps.compilation.get("prefill_tokens")
    if ladder:  # the user's ladder limits the size of a step
        return max(rungs("prefill_tokens", ladder)[-1], least)
    return max(min(usual, rounded_length), least)
