"""The runner's settings: shapes, compiled sizes and variants, and how much cache is useful.

In: what the user asked for, the model's config and the limits of a step. Out: a RunnerConfig.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jengine.assembly.args import EngineArgs
from jengine.assembly.device_defaults import (
    BLOCK_SIZE,
    OVERLAP_DEPTH,
    DeviceDefaults,
    device_defaults,
)
from jengine.assembly.ladders import ladders_for
from jengine.config import CacheSpec, ModelConfig, ScheduleConfig, cache_groups
from jengine.errors import ConfigError, UnsupportedFeature, nearest_name
from jengine.kvcache.kinds import blocks_needed
from jengine.models.stages import stage_layout
from jengine.quantization.backends import matmul_backend
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.attention_backend import attention_backend, cache_dtype
from jengine.runner.variants.buckets import Ladders, StepShapes
from jengine.runner.variants.features import Features, variants


def runner_config(
    args: EngineArgs,
    config: ModelConfig,
    schedule: ScheduleConfig,
    compilation: dict[str, Any],
    stages: int = 1,
    *,
    defaults: DeviceDefaults | None = None,
    penalises: bool = False,
    same_bits: bool = False,
    guesser_specs: tuple[CacheSpec, ...] = (),
) -> RunnerConfig:
    """The runner's settings. `penalises`: requests have penalties unless they say otherwise.
    `same_bits`: kernels give a row the same bits in any program. `guesser_specs`: what the layers
    of the model that guesses keep of a token."""
    defaults = defaults or device_defaults()
    if stages > 1 and schedule.num_scheduler_steps > 1:
        raise UnsupportedFeature(
            f"num_scheduler_steps={schedule.num_scheduler_steps} with {stages} pipeline stages: "
            "several steps in one call are not built for stages, which run other plans meanwhile. "
            "Leave num_scheduler_steps out."
        )
    refuse_drafts(schedule, stages)
    shapes = step_shapes(args, config, schedule, stages, guesser_specs)
    # A window moves on when a step has been read, so chunks in flight hold blocks as well.
    in_flight = (OVERLAP_DEPTH + stages) * max(
        schedule.max_num_batched_tokens, schedule.num_scheduler_steps
    )
    needs = [
        blocks_needed(
            group.spec, schedule.max_model_len + shapes.lookahead, shapes.block_size, in_flight
        )
        for group in shapes.groups
    ]
    most = config.vocab_size if args.max_logprobs < 0 else min(args.max_logprobs, config.vocab_size)
    known = variants(most, args.logprobs_mode)
    if schedule.one_segment:
        ladders, tiers, late = _one_program(schedule, shapes, known, compilation)
    else:
        ladders = ladders_for(schedule, shapes, compilation, defaults.first_rungs)
        usual = tuple(known) if args.strict else usual_variants(defaults.variants, penalises)
        tiers, late = _tiers(known, compilation.get("variants", usual))
    return RunnerConfig(
        shapes=shapes,
        ladders=ladders,
        tiers=tiers,
        late_tiers=late,
        cache_dtype=cache_dtype(config.dtype, str(shapes.attention), args.cache_codes),
        matmuls=matmul_backend(
            str(shapes.attention), pack=args.pack_weights is not False, exact=args.deterministic
        ),
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        num_gpu_blocks_override=args.num_gpu_blocks_override,
        memory_share=args.gpu_memory_utilization,
        demands=tuple((schedule.max_num_seqs * need, need) for need in needs),
        enable_prefix_caching=args.enable_prefix_caching,
        warm_up=not args.enforce_eager,
        early_start=args.wait_where(same_bits=same_bits) == "largest",
        strict=args.strict,
        choices=CompilerChoices(args.capture_collectives, args.matmuls),
    )


def step_shapes(
    args: EngineArgs,
    config: ModelConfig,
    schedule: ScheduleConfig,
    stages: int,
    guesser_specs: tuple[CacheSpec, ...],
) -> StepShapes:
    """What all buckets have in common."""
    # A stage's slots are built like the first layers of the model.
    own_specs = config.cache_specs[: stage_layout(config, stages).num_slots]
    groups = cache_groups(own_specs + guesser_specs)
    speculative = schedule.speculative
    on_device = speculative is not None and speculative.on_device
    lookahead = 0 if speculative is None else speculative.lookahead
    return StepShapes(
        groups=groups,
        block_size=args.block_size or BLOCK_SIZE,
        prefill_tile=schedule.prefill_tile,
        max_rows=schedule.max_num_seqs,
        max_model_len=schedule.max_model_len,
        one_segment=schedule.one_segment,
        attention=attention_backend(args.attention_backend, groups, args.cache_codes),
        max_adjusted=schedule.sampler_rows,
        packed_tables=stages > 1,
        most_drafts=schedule.most_drafts,
        # Those of the step, and of each step that may be in flight.
        draft_window=0 if on_device else schedule.most_drafts * (1 + OVERLAP_DEPTH),
        makes_guesses=on_device,
        lookahead=lookahead,
        joined_tiles=schedule.joined_tiles,
    )


def refuse_drafts(schedule: ScheduleConfig, stages: int) -> None:
    """Raise for what drafts cannot be combined with."""
    if not schedule.most_drafts:
        return
    others = {
        f"{stages} pipeline stages, whose plans carry every position": stages > 1,
        f"num_scheduler_steps={schedule.num_scheduler_steps}": schedule.num_scheduler_steps > 1,
        "deterministic=True without kernels of its own": schedule.one_segment,
    }
    for name, is_used in others.items():
        if is_used:
            raise UnsupportedFeature(
                f"speculative_config with {name}: drafts are not built for that. "
                "Leave one of them out."
            )


def with_sizes(
    schedule: ScheduleConfig, ladders: Ladders, defaults: DeviceDefaults | None = None
) -> ScheduleConfig:
    """The limits of a step, with compiled sizes, and with those at which prompts may be cut."""
    defaults = defaults or device_defaults()
    schedule = replace(schedule, decode_sizes=ladders.decode_rows)
    if not (defaults.cut_prompts and schedule.enable_chunked_prefill):
        return schedule
    return replace(schedule, prefill_sizes=ladders.prefill_tokens, full_step=ladders.full_step)


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
    harmless = {"cache_dir", "max_adjusted_seqs", "wait_for", "capture_collectives", "matmuls"}
    fixed = [name for name in compilation if name not in harmless]
    if fixed:
        raise ConfigError(
            "deterministic=True compiles one program here; "
            f"compilation_config[{fixed[0]!r}] cannot be chosen beside it. "
            "Its size is max_num_batched_tokens."
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
