"""Builds runners: sizes the cache, compiles the steps, allocates the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from flax import nnx

from jengine.config import CacheConfig, ModelConfig
from jengine.errors import UnsupportedFeature
from jengine.runner.guesser import LoadedGuesser
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.pipeline_runner import PipelineRunner
from jengine.runner.programs.background import BackgroundWarmUp
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.ledger import CompileLedger
from jengine.runner.programs.programs import Programs
from jengine.runner.programs.warm_up import ProgressBar, warm_up
from jengine.runner.runner import PlanRunner, Runner
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.sizing import Sizing
from jengine.runner.step.leaves import LeafOrder, Leaves
from jengine.runner.variants.tap_sets import TapSet, TapSets
from jengine.sampling.admission import history_length
from jengine.sampling.processor_sets import ProcessorSets
from jengine.sampling.processors import check_processor


def build_runners(
    model: nnx.Module,
    leaves: Leaves,
    model_config: ModelConfig,
    config: RunnerConfig,
    order: LeafOrder,
    bar: ProgressBar,
    agree_on_bytes: Callable[[int], int] = int,
    guesser: LoadedGuesser | None = None,
) -> tuple[tuple[PlanRunner, ...], CacheConfig]:
    """A runner for each replica, ready to serve, and the cache that each has room for.

    `model` has the declarations, `leaves` the parameters. `agree_on_bytes` turns the bytes
    available to this process into those available to all. `guesser` makes the drafts of steps.
    """
    own_leaves, sizings = [], []
    for part in order.places.whole.replicas:
        own_leaves.append(tuple(map(part.part, leaves)))
        is_all = part == order.places.whole
        own = (
            order if is_all else LeafOrder(model, replace(order.places, whole=part), order.backend)
        )
        own_guesser = None if guesser is None else guesser.on(part)
        sizings.append(Sizing(model_config, config, own, agree_on_bytes, own_guesser))
    cache, first = sizings[0].settle([one.device for one in sizings])
    programs = replica_programs([one.compiler(cache) for one in sizings], config)
    programs[0].keep(*first)
    taps = taps_of(programs)
    processors = processors_of(programs[0], model_config.vocab_size)
    models = tuple(
        LoadedModel(
            leaves, sizing.made_state(cache), compiled, config.ladders, model_config.vocab_size,
            taps, processors, sizing.order,
            () if sizing.guesser is None else sizing.guesser.leaves,
        )
        for leaves, sizing, compiled in zip(own_leaves, sizings, programs, strict=True)
    )  # fmt: skip
    if config.warm_up:
        wanted = config.programs
        warm_up(programs, wanted.first if config.early_start else wanted.all, bar)
        for loaded in models:
            loaded.warm_up(admission=any(tier.sampling.adjust for tier in config.tiers))
    if config.early_start:
        background = BackgroundWarmUp(programs, config.programs.later)
        for loaded in models:
            loaded.background = background
        background.start()
    return tuple(map(runner_for, models)), cache


def runner_for(loaded: LoadedModel) -> PlanRunner:
    """The runner for the model: with stages, a pipeline runner."""
    return Runner(loaded) if loaded.placement.num_stages == 1 else PipelineRunner(loaded)


def replica_programs(compilers: Iterable[StepCompiler], config: RunnerConfig) -> list[Programs]:
    """The programs of each replica, which share a ledger."""
    tiers = [*config.tiers, *config.late_tiers]
    ready = config.tiers if config.warm_up else ()
    late = (tier for tier in tiers if not any(other.covers(tier) for other in ready))
    ledger = CompileLedger(on_first_use=tuple(late))
    return [
        Programs(compiler, tiers, ledger, strict=config.strict, planned=config.programs.all)
        for compiler in compilers
    ]


def taps_of(programs: Sequence[Programs]) -> TapSets:
    """Sets of taps with the same numbers in every replica."""

    def forget(taps: TapSet) -> None:
        for one in programs:
            one.forget(taps)

    return TapSets(forget)


def processors_of(programs: Programs, vocab_size: int) -> ProcessorSets:
    """Sets of logits processors with the same numbers in every replica."""
    compiler = programs.compiler
    history, stages = history_length(compiler.shapes.max_model_len), compiler.placement.num_stages

    def check(function: Any) -> None:
        if stages > 1:
            raise UnsupportedFeature(
                f"logits_processors with pipeline_parallel_size={stages} is not built yet. Use "
                "tensor_parallel_size, or one device."
            )
        check_processor(function, vocab_size, history)

    return ProcessorSets(check)
