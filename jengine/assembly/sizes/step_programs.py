"""The programs of steps: compiled sizes, and variants compiled in warm-up or when first needed.

In: the user's settings, the model's config, the limits of a step and its shapes. Out: a
StepPrograms, or an error about compilation_config.

Reproducible outputs need all programs. Programs of different sizes round differently, so until
warm-up is complete an output may depend on timing where two tokens are nearly tied, even a greedy
one or one of a request with its own seed (whose noise is the same). Engines with `seed=` or
`compilation_config={"wait_for": "all"}` admit requests when every program is compiled; so do
multi-process engines, which must all run the same programs, strict ones, and those of multi-step
decode. `seed=` does not wait if all programs give the same bits, as in deterministic mode and with
the CPU kernels. `llm.wait_until_warm()` waits later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jengine.assembly.settings.groups import Groups
from jengine.assembly.sizes.device_defaults import SHORTEST_TILE, DeviceDefaults
from jengine.assembly.sizes.ladders import context_parallel_ladders, ladders_for
from jengine.assembly.sizes.step_adapters import with_adapted
from jengine.config import ModelConfig, ScheduleConfig
from jengine.errors import ConfigError, nearest_name
from jengine.runner.variants.buckets import FEWEST_DECODE_ROWS, Ladders, StepShapes
from jengine.runner.variants.features import (
    GREEDY_SCORED,
    Features,
    variants,
    with_drafts,
)

# Variants that do more than sample from the model's logits.
CAPABLE = ("adjusted", "full", "scored")


class StepPrograms(NamedTuple):
    """The sizes of steps, and the variants of each."""

    ladders: Ladders
    tiers: tuple[Features, ...]  # compiled in warm-up
    late_tiers: tuple[Features, ...]  # compiled when first needed


def step_programs(
    asked: Groups,
    config: ModelConfig,
    schedule: ScheduleConfig,
    shapes: StepShapes,
    defaults: DeviceDefaults,
    *,
    adapted: bool,
    adapts_head: bool,
    penalises: bool,
) -> StepPrograms:
    """The programs of steps. `adapted`: requests may have LoRA adapters, `adapts_head`: of the
    output head too. `penalises`: the generation config gives requests penalties."""
    compilation, most = asked.steps.compilation, asked.steps.max_logprobs
    most = config.vocab_size if most < 0 else min(most, config.vocab_size)
    known = variants(
        most, asked.steps.logprobs_mode, adapters=adapted, adapts_head=adapts_head,
        drafts=schedule.most_drafts > 0, own_ids=shapes.chained,
        greedy_scored=GREEDY_SCORED in compilation.get("variants", ()),
    )  # fmt: skip
    if schedule.one_segment:
        return one_program(schedule, shapes, known, compilation)
    ladders = ladders_for(schedule, shapes, compilation, defaults.first_rungs)
    ladders = context_parallel_ladders(
        ladders, asked.parallel.prefill_context_parallel_size, shapes.prefill_tile
    )
    usual = tuple(known) if asked.steps.strict else usual_variants(defaults.variants, penalises)
    if shapes.chained:  # here sampling is compiled without the model, so all its variants are cheap
        usual = tuple(dict.fromkeys((*usual, *CAPABLE)))
    if config.pooling is not None:
        return StepPrograms(pooling_ladders(ladders), (Features(),), ())
    wanted = with_drafted(known, tuple(compilation.get("variants", usual)))
    if adapted:
        wanted = with_adapted(known, wanted)
    return StepPrograms(ladders, *early_and_late(known, wanted))


def pooling_ladders(ladders: Ladders) -> Ladders:
    """Ladders of prefill-only steps."""
    tokens = tuple(size for size in ladders.prefill_tokens if size >= SHORTEST_TILE)
    tokens = tokens or ladders.prefill_tokens[-1:]
    return replace(
        ladders,
        decode_rows=(FEWEST_DECODE_ROWS,),
        prefill_tokens=tokens,
        prompts_only=True,
    )


def usual_variants(variants: tuple[str, ...], penalises: bool) -> tuple[str, ...]:
    """The default variants. If the generation config gives requests penalties: the adjusted variant
    and those that cover it."""
    if not penalises:
        return variants
    return tuple(dict.fromkeys(("adjusted", *(one for one in variants if one in CAPABLE))))


def with_drafted(known: dict[str, Features], wanted: Sequence[str]) -> tuple[str, ...]:
    """The wanted variants, then their speculative forms, if any."""
    drafted = map(with_drafts, wanted)
    return (*wanted, *(name for name in drafted if name in known and name not in wanted))


def one_program(
    schedule: ScheduleConfig,
    shapes: StepShapes,
    known: dict[str, Features],
    compilation: Mapping[str, Any],
) -> StepPrograms:
    """Deterministic mode: one bucket and the most capable variant, so that all outputs come from
    the same program."""
    harmless = {"cache_dir", "max_adjusted_seqs", "encoder_tokens", "patch_sizes", "wait_for",
                "capture_collectives", "matmuls", "short_graphs"}  # fmt: skip
    fixed = [name for name in compilation if name not in harmless]
    if fixed:
        raise ConfigError(
            "deterministic=True compiles one program here; "
            f"compilation_config[{fixed[0]!r}] cannot be chosen beside it. "
            "Its size is max_num_batched_tokens."
        )
    ladders = Ladders((schedule.max_num_batched_tokens,), (), (shapes.max_pages,))
    return StepPrograms(ladders, (list(known.values())[-1],), ())


def early_and_late(
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
