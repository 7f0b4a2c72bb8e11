"""The runner's settings: shapes, and how much cache is useful; `step_programs` has the programs.

In: the user's settings, the model's config and the limits of a step. Out: a RunnerConfig.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from jengine.assembly.processors import host_processors
from jengine.assembly.settings.dict_settings import compiler_settings
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.memory_args import CacheSettings
from jengine.assembly.sizes.device_defaults import (
    OVERLAP_DEPTH,
    DeviceDefaults,
    block_tokens,
    device_defaults,
)
from jengine.assembly.sizes.encoder_sizes import patch_sizes, refuse_beside_images, takes_images
from jengine.assembly.sizes.step_adapters import adapter_config, adapts_head
from jengine.assembly.sizes.step_experts import chosen_experts
from jengine.assembly.sizes.step_programs import step_programs
from jengine.config import CacheSpec, ModelConfig, ScheduleConfig, cache_groups
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.kvcache.kinds import blocks_needed
from jengine.logits_processor import LogitsProcessor
from jengine.models.stages import stage_layout
from jengine.quantization.backends import matmul_backend
from jengine.runner.programs.compiler_options import CompilerChoices
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.attention_backend import (
    BASES,
    attention_backend,
    cache_dtype,
    refuse_odd,
)
from jengine.runner.variants.buckets import Ladders, StepShapes, slot_rungs


def runner_config(
    asked: Groups,
    config: ModelConfig,
    schedule: ScheduleConfig,
    stages: int = 1,
    *,
    defaults: DeviceDefaults | None = None,
    penalises: bool = False,
    same_bits: bool = False,
    drafter_specs: tuple[CacheSpec, ...] = (),
) -> RunnerConfig:
    """The runner's settings. `penalises`: the generation config gives requests penalties.
    `same_bits`: a row's bits do not depend on the program. `drafter_specs`: cache specs of the
    drafter's layers."""
    defaults = defaults or device_defaults()
    refuse_several_steps(schedule, stages)
    refuse_beside_images(asked, config, schedule, stages)
    refuse_drafts(schedule, stages, drafter_specs)
    splitting = splitting_processors(asked, schedule)
    shapes = step_shapes(asked, config, schedule, stages, drafter_specs)
    adapters = adapter_config(asked, config)
    programs = step_programs(
        asked, config, schedule, shapes, defaults,
        adapted=adapters is not None, adapts_head=adapts_head(adapters, config),
        penalises=penalises,
    )  # fmt: skip
    shapes = replace(shapes, slot_rungs=slot_rungs(programs.ladders, shapes))
    return RunnerConfig(
        shapes=shapes,
        ladders=programs.ladders,
        tiers=programs.tiers,
        late_tiers=programs.late_tiers,
        cache_dtype=cache_dtype(config.dtype, str(shapes.attention), asked.cache.cache_codes),
        matmuls=matmul_backend(
            str(shapes.attention),
            pack=asked.steps.pack_weights is not False,
            exact=asked.steps.deterministic,
        ),
        kv_cache_memory_bytes=asked.cache.kv_cache_memory_bytes,
        num_gpu_blocks_override=asked.cache.num_gpu_blocks_override,
        memory_share=asked.cache.gpu_memory_utilization,
        demands=cache_demands(schedule, shapes, stages),
        enable_prefix_caching=asked.cache.enable_prefix_caching,
        warm_up=not asked.steps.enforce_eager,
        early_start=asked.steps.warm_up.wait_for(same_bits=same_bits) == "largest",
        strict=asked.steps.strict,
        choices=CompilerChoices(*compiler_settings(asked.steps.compilation)),
        host_processors=splitting,
        adapters=adapters,
        given_embeds=embeds_width(asked, config),
        encoder_tokens=schedule.encoder_tokens,
        patch_sizes=patch_sizes(asked.steps, config, schedule.encoder_tokens),
        takes_images=takes_images(asked.media, config),
    )


def cache_demands(
    schedule: ScheduleConfig, shapes: StepShapes, stages: int
) -> tuple[tuple[int, int], ...]:
    """Per cache group: blocks that a full step may need, and those that one request needs."""
    # A window advances when a step has been read, so chunks in flight hold blocks as well.
    in_flight = (OVERLAP_DEPTH + stages) * max(
        schedule.max_num_batched_tokens, schedule.num_scheduler_steps
    )
    needs = [
        blocks_needed(
            group.spec,
            schedule.max_model_len + shapes.lookahead,
            shapes.block_size,
            in_flight + shapes.lookahead,
        )
        for group in shapes.groups
    ]
    return tuple(
        (schedule.max_num_seqs * (need + kept_states(group.spec)), need)
        for group, need in zip(shapes.groups, needs, strict=True)
    )


def refuse_several_steps(schedule: ScheduleConfig, stages: int) -> None:
    """Raise for multi-step decode in a pipeline."""
    if stages > 1 and schedule.num_scheduler_steps > 1:
        raise UnsupportedFeature(
            f"num_scheduler_steps={schedule.num_scheduler_steps} with {stages} pipeline stages: "
            "several steps in one call are not built for stages, which run other plans meanwhile. "
            "Leave num_scheduler_steps out."
        )


def embeds_width(asked: Groups, config: ModelConfig) -> int:
    """Width of prompt embeddings; 0 if prompts may not be given as embeddings."""
    if not asked.steps.enable_prompt_embeds:
        return 0
    others = {
        f"{config.architecture}, whose layers look tokens up,": config.layer_inputs is not None,
        **asked.in_use("executor"),
    }
    for name, is_asked in others.items():
        if is_asked:
            raise UnsupportedFeature(
                f"enable_prompt_embeds with {name} is not built yet; leave one of them out."
            )
    return config.hidden_size


def splitting_processors(
    asked: Groups, schedule: ScheduleConfig
) -> tuple[type[LogitsProcessor], ...]:
    """Host-side processors, which split each step in two halves."""
    found = host_processors(asked.steps.logits_processors)
    others = {
        "joint_replicas": asked.parallel.joint_replicas,
        "speculative_config": schedule.speculative is not None,
        f"num_scheduler_steps={schedule.num_scheduler_steps}": schedule.num_scheduler_steps > 1,
    }
    for name in [name for name, is_used in others.items() if is_used and found]:
        raise UnsupportedFeature(
            f"logits_processors has the class {found[0].__name__}, which runs on the host between "
            f"two halves of each step; with {name} there is no such place. Leave {name} out, or "
            "write the processor as a JAX function f(logits) or f(ids, logits)."
        )
    return found


def step_shapes(
    asked: Groups,
    config: ModelConfig,
    schedule: ScheduleConfig,
    stages: int,
    drafter_specs: tuple[CacheSpec, ...],
) -> StepShapes:
    """Shapes common to all buckets."""
    # A stage's slots have the configs of the model's first layers.
    own_specs = config.layer_specs[: stage_layout(config, stages).num_slots]
    drafting = tuple((spec,) for spec in drafter_specs)
    block_size = block_tokens(asked)
    every = snapshot_distance(asked.cache, block_size)
    groups = cache_groups(with_snapshots(own_specs + drafting, every))
    speculative = schedule.speculative
    on_device = speculative is not None and speculative.on_device
    lookahead = 0 if speculative is None else speculative.lookahead
    wanted = asked.steps.attention_backend
    attention = attention_backend(wanted, groups, asked.cache.cache_codes)
    if asked.cache.cache_codes is not None:
        refuse_odd(attention, groups, block_size)
    return StepShapes(
        groups=groups,
        block_size=block_size,
        prefill_tile=schedule.prefill_tile,
        max_rows=schedule.max_num_seqs,
        max_model_len=schedule.max_model_len,
        one_segment=schedule.one_segment,
        attention=attention,
        prompts=wanted if wanted in BASES else None,
        max_adjusted=schedule.sampler_rows,
        packed_tables=stages > 1,
        most_drafts=schedule.most_drafts,
        # Of the running step, and of each step in flight.
        draft_window=0 if on_device else schedule.most_drafts * (1 + OVERLAP_DEPTH),
        makes_drafts=on_device,
        lookahead=lookahead,
        joined_tiles=schedule.joined_tiles,
        reads_together=schedule.shared_blocks > 0,
        adapter_slots=schedule.max_loras,
        uncached=cache_dtype(config.dtype, attention).name,
        experts=chosen_experts(asked, config, schedule, stages),
        # Recurrent states cannot be rolled back: accepted tokens are run again.
        chained=not (schedule.most_drafts and config.has_recurrent),
        pooling="" if config.pooling is None else config.pooling.pooled_as,
        most_ahead=0 if config.vision is None else config.vision.most_ahead,
    )


def refuse_drafts(
    schedule: ScheduleConfig, stages: int, drafter_specs: tuple[CacheSpec, ...]
) -> None:
    """Raise for features that speculative decoding does not support."""
    if not schedule.most_drafts:
        return
    others = {
        f"{stages} pipeline stages, whose plans carry every position": stages > 1,
        f"num_scheduler_steps={schedule.num_scheduler_steps}": schedule.num_scheduler_steps > 1,
        "deterministic=True without kernels of its own": schedule.one_segment,
        "a draft model with recurrent layers, whose state cannot forget its drafts": any(
            spec.is_state for spec in drafter_specs
        ),
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
    """Add compiled sizes to the limits of a step, and those at which prefill chunks may be cut."""
    defaults = defaults or device_defaults()
    schedule = replace(schedule, decode_sizes=ladders.decode_rows)
    if not (defaults.cut_prompts and schedule.enable_chunked_prefill):
        return schedule
    return replace(schedule, prefill_sizes=ladders.prefill_tokens, full_step=ladders.full_step)


# Default distance of snapshots in tokens. A longer prompt takes one step more.
SNAPSHOT_EVERY = 256
# Snapshots per running request for which the cache has room.
KEPT_FOR_EACH = 2


def snapshot_distance(asked: CacheSettings, block_size: int) -> int | None:
    """Tokens between snapshots of a recurrent state; None: no snapshots."""
    given = asked.mamba_block_size
    if given is not None and given % block_size:
        raise ConfigError(
            f"mamba_block_size={given}: expected a multiple of block_size={block_size}, because "
            "states are kept where a block of the KV cache ends."
        )
    if asked.mamba_cache_mode == "none" or not asked.enable_prefix_caching:
        return None
    return given or -(-SNAPSHOT_EVERY // block_size) * block_size


def with_snapshots(
    layer_specs: Iterable[tuple[CacheSpec, ...]], every: int | None
) -> tuple[tuple[CacheSpec, ...], ...]:
    """Set the snapshot distance in the cache specs of recurrent layers."""

    def kept(spec: CacheSpec) -> CacheSpec:
        return replace(spec, snapshot_every=every) if spec.is_state else spec

    return tuple(tuple(map(kept, specs)) for specs in layer_specs)


def kept_states(spec: CacheSpec) -> int:
    """State slots of a group useful per request, beside those that it needs."""
    return KEPT_FOR_EACH if spec.snapshot_every is not None else 0
