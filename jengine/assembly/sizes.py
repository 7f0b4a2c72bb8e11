"""How large everything is: limits of a step, compiled shapes, variants, what the cache is for.

The one place where what the user asked for meets the model and the device. Builds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jengine.assembly.args import EngineArgs
from jengine.config import ModelConfig, ScheduleConfig, cache_groups
from jengine.errors import ConfigError, UnsupportedFeature, nearest_name
from jengine.kvcache.kinds import blocks_needed
from jengine.models.stages import stage_layout
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.attention_backend import attention_backend, cache_dtype
from jengine.runner.variants.buckets import FirstRungs, Ladders, StepShapes, default_ladders
from jengine.runner.variants.features import Features, variants
from jengine.sampling.admission import row_bytes

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
PREFILL_TILE = 32
# Plans that may be in flight while one is read.
OVERLAP_DEPTH = 1


# What the sampler's pool of penalties, biases and masks may take by default, and the least that it
# holds: a row takes about 1 MB with a vocabulary of 128,000.
SAMPLER_POOL_BYTES = 256 * 1024**2
FEWEST_ADJUSTED = 8


@dataclass(frozen=True)
class DeviceDefaults:
    """Sizes that suit a kind of device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    # Step variants compiled at the start; the others when they are first needed. On an accelerator
    # all that differ, because the cache is sized by what the largest needs; sampling there costs
    # next to nothing, so greedy steps have no programs of their own.
    variants: tuple[str, ...]
    first_rungs: FirstRungs = field(default_factory=FirstRungs)


# Tokens of the one shape that deterministic mode compiles.
DETERMINISTIC_TOKENS = 64
DEVICE_DEFAULTS = {
    "cpu": DeviceDefaults(8, 512, ("greedy", "sampled")),
    "gpu": DeviceDefaults(256, 8192, ("sampled", "adjusted", "full", "scored"), FirstRungs(8, 256)),
}


def device_defaults() -> DeviceDefaults:
    """The sizes for the device that JAX uses."""
    return DEVICE_DEFAULTS["cpu" if jax.default_backend() == "cpu" else "gpu"]


def schedule_config(
    args: EngineArgs,
    config: ModelConfig,
    defaults: DeviceDefaults | None = None,
    *,
    penalises: bool = False,
) -> ScheduleConfig:
    """Limits of a step, from what was asked for, the model and the device (None: JAX's).

    `penalises`: requests have penalties unless they say otherwise.
    """
    defaults = defaults or device_defaults()
    max_model_len = args.max_model_len or config.max_position
    if max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} is beyond the {config.max_position} positions that "
            "this model was made for. Lower it."
        )
    if max_model_len < 2:
        raise ConfigError("max_model_len=1: expected at least 2, a prompt token and an answer.")
    rows = args.max_num_seqs or defaults.max_num_seqs
    return ScheduleConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=_batched_tokens(args, rows, max_model_len, defaults),
        max_model_len=max_model_len,
        policy=args.scheduling_policy,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        prefill_tile=prefill_tile(args),
        num_scheduler_steps=_steps_at_once(args),
        max_adjusted_seqs=_adjusted_seqs(args, config, rows, max_model_len, penalises),
    )


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


def _steps_at_once(args: EngineArgs) -> int:
    """Decode steps in one call of the device."""
    steps = args.num_scheduler_steps
    if type(steps) is not int or steps < 1:
        raise ConfigError(f"num_scheduler_steps={steps!r}: expected an integer of at least 1.")
    if steps > 1 and args.deterministic:
        raise ConfigError(
            f"num_scheduler_steps={steps} with deterministic=True, which computes everything in "
            "one program that runs one step. Leave one of them out."
        )
    return steps


def prefill_tile(args: EngineArgs) -> int:
    """Tokens that a prompt's chunks are rounded up to."""
    return 1 if args.deterministic else PREFILL_TILE


def _batched_tokens(
    args: EngineArgs, rows: int, max_model_len: int, defaults: DeviceDefaults
) -> int:
    """The token budget of a step. Room for one tile beside all decode rows, so that a full engine
    still takes prompts in."""
    tile = prefill_tile(args)
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
            logger.info("max_num_batched_tokens=%d is raised to %d: %d rows and one tile of %d",
                        given, least, rows, tile)  # fmt: skip
        return max(given, least)
    if not args.enable_chunked_prefill:
        return max(rounded_length, least)
    ladder = (args.compilation_config or {}).get("prefill_tokens")
    if ladder:  # a ladder of the user's own says how large a step may be
        return max(_rungs("prefill_tokens", ladder)[-1], least)
    usual = DETERMINISTIC_TOKENS if args.deterministic else defaults.max_num_batched_tokens
    return max(min(usual, rounded_length), least)


def runner_config(
    args: EngineArgs,
    config: ModelConfig,
    schedule: ScheduleConfig,
    compilation: dict[str, Any],
    stages: int = 1,
    *,
    defaults: DeviceDefaults | None = None,
    penalises: bool = False,
) -> RunnerConfig:
    """The runner's settings. `penalises`: requests have penalties unless they say otherwise."""
    defaults = defaults or device_defaults()
    if stages > 1 and schedule.num_scheduler_steps > 1:
        raise UnsupportedFeature(
            f"num_scheduler_steps={schedule.num_scheduler_steps} with {stages} pipeline stages: "
            "several steps in one call are not built for stages, which run other plans meanwhile. "
            "Leave num_scheduler_steps out."
        )
    # A stage's slots are built like the first layers of the model.
    groups = cache_groups(config.cache_specs[: stage_layout(config, stages).num_slots])
    shapes = StepShapes(
        groups=groups,
        block_size=args.block_size or BLOCK_SIZE,
        prefill_tile=schedule.prefill_tile,
        max_rows=schedule.max_num_seqs,
        max_model_len=schedule.max_model_len,
        one_segment=args.deterministic,
        attention=attention_backend(args.attention_backend, groups),
        max_adjusted=schedule.sampler_rows,
        packed_tables=stages > 1,
    )
    # A window moves on when a step has been read, so chunks in flight hold blocks as well.
    in_flight = (OVERLAP_DEPTH + stages) * max(
        schedule.max_num_batched_tokens, schedule.num_scheduler_steps
    )
    needs = [
        blocks_needed(group.spec, schedule.max_model_len, shapes.block_size, in_flight)
        for group in groups
    ]
    most = config.vocab_size if args.max_logprobs < 0 else min(args.max_logprobs, config.vocab_size)
    known = variants(most, args.logprobs_mode)
    if args.deterministic:
        ladders, tiers, late = _one_program(schedule, shapes, known, compilation)
    else:
        ladders = _ladders(schedule, shapes, compilation, defaults.first_rungs)
        usual = tuple(known) if args.strict else usual_variants(defaults.variants, penalises)
        tiers, late = _tiers(known, compilation.get("variants", usual))
    return RunnerConfig(
        shapes=shapes,
        ladders=ladders,
        tiers=tiers,
        late_tiers=late,
        cache_dtype=cache_dtype(config.dtype, str(shapes.attention)),
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        memory_share=args.gpu_memory_utilization,
        demands=tuple((schedule.max_num_seqs * need, need) for need in needs),
        enable_prefix_caching=args.enable_prefix_caching,
        warm_up=not args.enforce_eager,
        early_start=args.wait_for == "largest",
        strict=args.strict,
    )


def usual_variants(variants: tuple[str, ...], penalises: bool) -> tuple[str, ...]:
    """The variants for a model. Where every request has penalties, as the generation settings of
    some models say, the adjusted variant is the common one."""
    if not penalises:
        return variants
    return ("adjusted", *(name for name in variants if name in ("full", "scored")))


def _one_program(
    schedule: ScheduleConfig,
    shapes: StepShapes,
    known: dict[str, Features],
    compilation: dict[str, Any],
) -> tuple[Ladders, tuple[Features, ...], tuple[Features, ...]]:
    """Deterministic mode: one bucket and the variant that can do everything, so that all numbers
    come out of the same program."""
    harmless = {"cache_dir", "max_adjusted_seqs"}
    if compilation.get("wait_for") == "all":  # as in every engine of this mode
        harmless.add("wait_for")
    fixed = [name for name in compilation if name not in harmless]
    if fixed:
        raise ConfigError(
            f"deterministic=True compiles one program; compilation_config[{fixed[0]!r}] cannot be "
            "chosen beside it. Its size is max_num_batched_tokens."
        )
    ladders = Ladders((schedule.max_num_batched_tokens,), (), (shapes.max_pages,))
    return ladders, (known["scored"],), ()


def _tiers(
    known: dict[str, Features], wanted: Sequence[str]
) -> tuple[tuple[Features, ...], tuple[Features, ...]]:
    """Variants compiled in warm-up, and those compiled when first needed."""
    for name in wanted:
        if name not in known:
            raise ConfigError(
                f"compilation_config['variants'] has {name!r}; known: {', '.join(known)}."
                f"{nearest_name(str(name), known)}"
            )
    if not wanted:
        raise ConfigError(
            "compilation_config['variants'] is empty; use enforce_eager=True instead."
        )
    early = tuple(value for name, value in known.items() if name in wanted)
    return early, tuple(value for value in known.values() if value not in early)


def _ladders(
    schedule: ScheduleConfig, shapes: StepShapes, compilation: dict[str, Any], first: FirstRungs
) -> Ladders:
    ladders = default_ladders(
        schedule.max_num_seqs,
        schedule.max_num_batched_tokens,
        schedule.max_model_len,
        shapes.block_size,
        shapes.prefill_tile,
        first,
    )
    given = {
        name: _rungs(name, compilation[name])
        for name in ("decode_rows", "prefill_tokens", "pages")
        if name in compilation
    }
    repeats = tuple(sorted({1, schedule.num_scheduler_steps}))
    ladders = replace(ladders, repeats=repeats, **given)
    tokens = schedule.max_num_batched_tokens // shapes.prefill_tile * shapes.prefill_tile
    enough = {"decode_rows": schedule.max_num_seqs, "prefill_tokens": tokens,
              "pages": shapes.max_pages}  # fmt: skip
    for name, least in enough.items():
        last = getattr(ladders, name)[-1]
        if last < least:
            raise ConfigError(
                f"compilation_config[{name!r}] ends at {last}, but a step may need {least}."
            )
    for tokens in ladders.prefill_tokens:
        if tokens % shapes.prefill_tile:
            raise ConfigError(
                f"compilation_config['prefill_tokens'] has {tokens}; expected multiples of "
                f"{shapes.prefill_tile}."
            )
    return ladders


def _rungs(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, (list, tuple)) or any(type(item) is not int for item in given):
        raise ConfigError(f"compilation_config[{name!r}]={given!r}: expected a list of integers.")
    return tuple(given)
