"""Limits of a step and of the requests that run at once.

In: what the user asked for, the model's config and the device's defaults. Out: a ScheduleConfig.
"""

from __future__ import annotations

import logging

from jengine.assembly.args import EngineArgs
from jengine.assembly.determinism import needs_one_segment
from jengine.assembly.device_defaults import (
    DETERMINISTIC_TOKENS,
    JOINED_TILE,
    SHORTEST_TILE,
    DeviceDefaults,
    device_defaults,
)
from jengine.assembly.ladders import rungs
from jengine.config import ModelConfig, ScheduleConfig, decode_rows
from jengine.errors import ConfigError
from jengine.runner.step.attention_backend import available_backend
from jengine.sampling.admission import row_bytes
from jengine.speculative.config import speculative_config
from pallas_kernels.prefill_attention import JOINING, tokens_of_tile

logger = logging.getLogger(__name__)
# Default size of the sampler's pool of penalties, biases and masks, and the fewest rows it has: a
# row takes about 1 MB with a vocabulary of 128,000.
SAMPLER_POOL_BYTES = 264 * 1024**2
FEWEST_ADJUSTED = 8


def schedule_config(
    args: EngineArgs,
    config: ModelConfig,
    defaults: DeviceDefaults | None = None,
    *,
    penalises: bool = False,
    devices: int = 1,
    stages: int | None = None,
) -> ScheduleConfig:
    """Limits of a step. `defaults` are the device's; None: those of the device that JAX uses.

    `penalises`: requests have penalties unless they say otherwise. `devices`: of one replica.
    `stages`: of the pipeline; None: as the arguments say.
    """
    one_segment = needs_one_segment(args, config, devices)
    joins = joins_tiles(args, config, defaults, stages or args.pipeline_parallel_size)
    defaults = defaults or device_defaults()
    run = 1 if one_segment else prefill_tile(config, defaults)
    tile = JOINED_TILE if joins and run > 1 else run
    max_model_len = args.max_model_len or config.max_position
    if max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} is beyond the {config.max_position} positions that "
            "this model was made for. Lower it."
        )
    if max_model_len < 2:
        raise ConfigError("max_model_len=1: expected at least 2, a prompt token and an answer.")
    rows = args.max_num_seqs or defaults.max_num_seqs
    given = args.speculative_config
    speculative = None if given is None else speculative_config(given)
    most_drafts = 0 if speculative is None else speculative.num_speculative_tokens
    return ScheduleConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=_batched_tokens(
            args, decode_rows(rows, most_drafts), max_model_len, tile,
            DETERMINISTIC_TOKENS if one_segment else defaults.max_num_batched_tokens,
        ),
        max_model_len=max_model_len,
        policy=args.scheduling_policy,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        prefill_tile=tile,
        joined_tiles=run // tile,
        num_scheduler_steps=_steps_at_once(args, one_segment),
        max_adjusted_seqs=_adjusted_seqs(args, config, rows, max_model_len, penalises),
        one_segment=one_segment,
        vocab_size=config.vocab_size,
        speculative=speculative,
    )  # fmt: skip


def _adjusted_seqs(
    args: EngineArgs, config: ModelConfig, rows: int, max_model_len: int, penalises: bool
) -> int:
    """Requests with penalties, biases or masks that may run at once: all, if their state is small
    or every request has them."""
    given = (args.compilation_config or {}).get("max_adjusted_seqs")
    if given is not None:
        if type(given) is not int or given < 1:
            raise ConfigError(
                f"compilation_config['max_adjusted_seqs']={given!r}: expected a positive integer."
            )
        return min(given, rows)
    if penalises:
        return rows
    fit = SAMPLER_POOL_BYTES // row_bytes(config.vocab_size, max_model_len)
    most = max(1 << max(fit, 1).bit_length() - 1, FEWEST_ADJUSTED)
    if most < rows:
        logger.info("At most %d of %d requests at once may have penalties, biases or masks; "
                    "compilation_config['max_adjusted_seqs'] is for more", most, rows)  # fmt: skip
    return min(most, rows)


def _steps_at_once(args: EngineArgs, one_segment: bool) -> int:
    """Decode steps in one call of the device."""
    steps = args.num_scheduler_steps
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"num_scheduler_steps={steps!r}: expected an integer of at least 1.")
    if steps > 1 and one_segment:
        raise ConfigError(
            f"num_scheduler_steps={steps} with deterministic=True, which computes everything here "
            "in one program that runs one step. Leave one of them out."
        )
    return steps


def prefill_tile(config: ModelConfig, defaults: DeviceDefaults) -> int:
    """Tokens that prefill attention takes at once; chunks are rounded up to them, or to parts of
    them where it joins tiles."""
    if not defaults.full_tiles:
        return SHORTEST_TILE
    return max(SHORTEST_TILE, *(tokens_of_tile(layer.mixer.group) for layer in config.layers))


def joins_tiles(
    args: EngineArgs, config: ModelConfig, defaults: DeviceDefaults | None, stages: int | None
) -> bool:
    """Whether attention joins short tiles of prompt tokens. In a pipeline each tile has a block
    table in the packed input, so there tiles are long."""
    if (stages or 1) > 1:
        return False
    if defaults is not None:  # of a device that need not be here
        return defaults.full_tiles and args.attention_backend in ("auto", *JOINING)
    return available_backend(args.attention_backend, config.groups)[0] in JOINING


def _batched_tokens(args: EngineArgs, rows: int, max_model_len: int, tile: int, usual: int) -> int:
    """The token budget of a step. Room for one tile beside all decode rows, so that a full engine
    still takes prompts in."""
    rounded_length = -(-max_model_len // tile) * tile
    least = rows + tile
    if args.max_num_batched_tokens:
        given = args.max_num_batched_tokens
        if not args.enable_chunked_prefill and given < rounded_length:
            raise ConfigError(
                f"max_num_batched_tokens={given} with enable_chunked_prefill=False: a prompt of up "
                f"to {max_model_len} tokens would never fit. Raise it to {rounded_length}, lower "
                "max_model_len, or enable chunked prefill."
            )
        if given < least:
            logger.info("max_num_batched_tokens=%d is raised to %d: %d decodes and one tile of %d",
                        given, least, rows, tile)  # fmt: skip
        return max(given, least)
    if not args.enable_chunked_prefill:
        return max(rounded_length, least)
    ladder = (args.compilation_config or {}).get("prefill_tokens")
    if ladder:  # a ladder of the user's own says how large a step may be
        return max(rungs("prefill_tokens", ladder)[-1], least)
    return max(min(usual, rounded_length), least)
