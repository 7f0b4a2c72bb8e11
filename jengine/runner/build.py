"""Builds a runner per replica: sizes the KV cache, compiles the steps, allocates the state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from flax import nnx

from jengine.config import CacheConfig, ModelConfig
from jengine.errors import UnsupportedFeature
from jengine.logits_processor import ProcessorConfig
from jengine.lora.stacks import AdapterStacks
from jengine.lora.store import AdapterStore
from jengine.lora.weights import adapted_weights, stack_dtype
from jengine.models.stages import StageLayout
from jengine.runner.encoder_output import EncoderOutput
from jengine.runner.given_embeds import GivenEmbeds
from jengine.runner.host_processors import HostProcessors
from jengine.runner.host_sampling import HostSampling
from jengine.runner.image_inputs import Images
from jengine.runner.joint_runner import JointGroup, JointRunner
from jengine.runner.loaded_drafter import LoadedDrafter
from jengine.runner.loaded_model import LoadedModel
from jengine.runner.pipeline_runner import PipelineRunner
from jengine.runner.programs.background import BackgroundWarmUp
from jengine.runner.programs.compiler import StepCompiler
from jengine.runner.programs.encoders import Encoders, Packer
from jengine.runner.programs.late import LatePrograms
from jengine.runner.programs.ledger import CompileLedger
from jengine.runner.programs.programs import Programs
from jengine.runner.programs.warm_up import ProgressBar, compile_threads, warm_up
from jengine.runner.rehearsal import load_kernels, loads_kernels, records_graphs, rehearse
from jengine.runner.resize import Resizing
from jengine.runner.runner import Companion, EmptyRunner, PlanRunner, Runner
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.sizing import Sizing
from jengine.runner.step.adapter_rows import implementation_of
from jengine.runner.step.joined import JoinedReplicas
from jengine.runner.step.leaves import LeafOrder, Leaves
from jengine.runner.step.mels import MelPacker
from jengine.runner.step.patches import PatchPacker
from jengine.runner.step.text_packing import TextPacker
from jengine.runner.variants.tap_sets import TapSet, TapSets
from jengine.sampling.processor_sets import ProcessorSets
from jengine.sampling.processors import check_processor
from jengine.sampling.row_parameters import history_length
from sharding.jax_settings import engine_context
from sharding.placement import Placement


def build_runners(
    model: nnx.Module,
    leaves: Leaves,
    model_config: ModelConfig,
    config: RunnerConfig,
    order: LeafOrder,
    bar: ProgressBar,
    agree_on_bytes: Callable[[int], int] = int,
    drafter: LoadedDrafter | None = None,
) -> tuple[tuple[PlanRunner, ...], CacheConfig]:
    """Return a runner per replica, ready to serve, and the config of each one's KV cache.

    `model` has the declarations, `leaves` the parameters. `agree_on_bytes` returns the minimum over
    processes. `drafter` drafts tokens on the device.
    """
    own_leaves, sizings = [], []
    make_stacks = stacks_for(model_config, config, order.places.layout)
    whole = order.places.whole
    joint = order if whole.joint else None
    kernels = set() if loads_kernels(whole, config.shapes) else None
    for number, part in enumerate(whole.replicas):
        # With joint steps, the first replica has the parameters of all.
        own_leaves.append(tuple(map(part.part, leaves)) if joint is None else leaves * (not number))
        is_all = part == order.places.whole
        own = (
            order if is_all else LeafOrder(model, replace(order.places, whole=part), order.backend)
        )
        own_drafter = None if drafter is None else drafter.on(part)
        stacks = make_stacks(part)
        sizings.append(
            Sizing(model_config, config, own, agree_on_bytes, own_drafter, stacks, joint, kernels)
        )
    cache, first = sizings[0].settle([one.device for one in sizings])
    programs = replica_programs([one.compiler(cache) for one in sizings], config)
    for one in first:
        programs[0].keep(*one)
    taps = taps_of(programs)
    processors = processors_of(programs[0], model_config.vocab_size)
    models = tuple(
        LoadedModel(
            leaves, sizing.state_maker(cache), compiled, config.ladders, model_config.vocab_size,
            taps, processors, joint or sizing.order,
            () if sizing.drafter is None else sizing.drafter.leaves, sizing.adapters,
        )
        for leaves, sizing, compiled in zip(own_leaves, sizings, programs, strict=True)
    )  # fmt: skip
    for loaded, sizing in zip(models, sizings, strict=True):
        loaded.resizing = Resizing(sizing, cache)
    running = programs if joint is None else programs[:1]
    if config.warm_up:
        wanted = config.programs
        threads = compile_threads(sizings[0].device.platform)
        warm_up(running, wanted.first if config.early_start else wanted.all, bar, threads)
    if kernels:  # before the cache is allocated: each runs on an array as large
        load_kernels(kernels, whole)
    runners = runners_of(models, config, model_config, whole)
    for loaded in models:
        loaded.make_state()
        if config.warm_up:
            loaded.warm_up(admission=any(tier.sampling.adjust for tier in config.tiers))
    if config.warm_up and not config.early_start and records_graphs(sizings[0].device.platform):
        rehearse(runners, config)
    # Processes of one mesh would have to agree on the programs that exist; joint steps run those of
    # the first replica.
    alone = len(whole.processes) == 1 and joint is None
    if config.shapes.chained and config.warm_up and not config.strict and alone:
        late = LatePrograms(running)
        for loaded in models:
            loaded.late = loaded.programs.late = late
    if config.early_start:
        background = BackgroundWarmUp(running, config.programs.later)
        for loaded in models:
            loaded.background = background
        background.start()
    return runners, cache


def runners_of(
    models: Sequence[LoadedModel], config: RunnerConfig, model: ModelConfig, whole: Placement
) -> tuple[EmptyRunner, ...]:
    """A runner per replica, with its encoder's programs. Does not need the state yet."""
    if not whole.joint:
        return tuple(runner_for(loaded, config, model) for loaded in models)
    companions = [companions_of(loaded, config, model) for loaded in models]
    group = JointGroup(models, JoinedReplicas(whole), companions)
    return tuple(JointRunner(group, i, loaded) for i, loaded in enumerate(models))


def stacks_for(
    model: ModelConfig, config: RunnerConfig, layout: StageLayout
) -> Callable[[Placement], AdapterStacks | None]:
    """Factory of a replica's adapter arrays; replicas share the adapters in host memory."""
    wanted = config.adapters
    if wanted is None:
        return lambda placement: None
    store = AdapterStore(model, wanted.most_rank, wanted.modules)

    def made(placement: Placement) -> AdapterStacks:
        implementation = implementation_of(config.shapes, placement)
        weights = adapted_weights(
            model, wanted.rank, wanted.slots, wanted.modules,
            implementation=implementation, layout=layout,
        )  # fmt: skip
        dtype = stack_dtype(wanted.dtype, model)
        return AdapterStacks(weights, dtype, placement, store, implementation)

    return made


def encoders_of(
    loaded: LoadedModel, config: RunnerConfig, packer: Packer, *, warm_up: bool
) -> Encoders:
    """The encoder's programs. `warm_up`: compile all of them now."""
    programs = loaded.programs
    encoders = Encoders(
        programs.compiler, packer, config.encoder_tokens, config.patch_sizes, programs.ledger,
        apart=loaded.order.places.whole_towers,
    )  # fmt: skip
    if warm_up:
        encoders.warm_up()
    return encoders


def runner_for(loaded: LoadedModel, config: RunnerConfig, model: ModelConfig) -> EmptyRunner:
    """A runner with its companions and host logits processors, if there are any."""
    processed = None
    if config.host_processors:
        shapes = config.shapes
        limits = ProcessorConfig(loaded.vocab_size, shapes.max_rows, shapes.max_model_len)
        processed = HostSampling(loaded, HostProcessors(config.host_processors, limits))
    kind = PipelineRunner if loaded.placement.num_stages > 1 else Runner
    return kind(loaded, companions_of(loaded, config, model), processed)


def companions_of(
    loaded: LoadedModel, config: RunnerConfig, model: ModelConfig
) -> tuple[Companion, ...]:
    """The model's companions: prompt embeddings, and images or encoder outputs."""
    prompts = (GivenEmbeds(config.given_embeds),) if config.given_embeds else ()
    if model.vision is not None:
        ready, images = config.warm_up and config.takes_images, PatchPacker(model.vision)
        return *prompts, Images(loaded, encoders_of(loaded, config, images, warm_up=ready))
    if model.cross_encoder is not None:
        encoders = encoders_of(loaded, config, cross_packer(model), warm_up=config.warm_up)
        return *prompts, EncoderOutput(loaded, encoders, model.cross_encoder.positions)
    return prompts


def cross_packer(model: ModelConfig) -> Packer:
    """Packer of the encoder's input, for models with cross attention."""
    width = model.cross_width
    return TextPacker(width) if model.speech is None else MelPacker(model.speech, width)


def replica_programs(compilers: Iterable[StepCompiler], config: RunnerConfig) -> list[Programs]:
    """The programs of each replica, with a common ledger."""
    tiers = [*config.tiers, *config.late_tiers]
    ready = config.tiers if config.warm_up else ()
    late = (tier for tier in tiers if not any(other.covers(tier) for other in ready))
    ledger = CompileLedger(on_first_use=tuple(late))
    return [
        Programs(
            compiler,
            tiers,
            ledger,
            strict=config.strict,
            planned=config.programs.all,
            largest=config.ladders.largest,
        )
        for compiler in compilers
    ]


def taps_of(programs: Sequence[Programs]) -> TapSets:
    """Tap sets with the same numbers in every replica."""

    def forget(taps: TapSet) -> None:
        for one in programs:
            one.forget(taps)

    return TapSets(forget)


def processors_of(programs: Programs, vocab_size: int) -> ProcessorSets:
    """Logits processor sets with the same numbers in every replica."""
    compiler = programs.compiler
    history, stages = history_length(compiler.shapes.max_model_len), compiler.placement.num_stages

    @engine_context()
    def check(function: Any) -> None:
        if stages > 1:
            raise UnsupportedFeature(
                f"logits_processors with pipeline_parallel_size={stages} is not built yet. Use "
                "tensor_parallel_size, one device, or a class of jengine.LogitsProcessor, which "
                "runs on the host."
            )
        check_processor(function, vocab_size, history)

    return ProcessorSets(check)
