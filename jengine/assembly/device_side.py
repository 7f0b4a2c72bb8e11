"""The device side of an engine: parameters, runners and core.

In: settings and the model's source. Out: a ready DeviceSide. `device_settings` decides sizes and
placement; in multi-host engines all processes agree on each step of construction.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
from flax import nnx

import jengine
from jengine.assembly.backend import await_kernels, start_backend
from jengine.assembly.block_transfers import transfers_of, with_external_blocks
from jengine.assembly.drafter_source import DrafterSource, open_drafter, with_draft_cost
from jengine.assembly.engine import DeviceSide
from jengine.assembly.grammars import CoreGrammars, core_grammars
from jengine.assembly.host_weights import with_layers_on_host
from jengine.assembly.kernel_trial import with_right_kernels
from jengine.assembly.mesh_placement import placement_for
from jengine.assembly.model_facts import ModelSource
from jengine.assembly.model_source import is_live, load_parameters
from jengine.assembly.node_rendezvous import check_nodes
from jengine.assembly.peer_weights import serve_weights
from jengine.assembly.process_checks import check_processes, refuse_halves, starts_early
from jengine.assembly.processors import engine_processors
from jengine.assembly.progress import explained_if_slow
from jengine.assembly.prompt_kernels import with_prompt_kernels
from jengine.assembly.recording import recorder_for
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.model_args import ModelSettings
from jengine.assembly.sizes.determinism import batch_dependence
from jengine.assembly.sizes.device_defaults import OVERLAP_DEPTH, device_defaults
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_experts import balancer_of
from jengine.assembly.sizes.step_sizes import runner_config, with_sizes
from jengine.assembly.start_log import log_copies, log_stages
from jengine.config import CacheConfig, ScheduleConfig
from jengine.device_advice import Doing, explained
from jengine.distributed.process_group import CoreParts, ProcessGroup, process_group_of
from jengine.distributed.shared_compile_cache import agree_on_compile_cache
from jengine.executor.multihost.settings import Direction, MultihostSettings
from jengine.models.stages import StageLayout, stage_layout
from jengine.runner.build import build_runners
from jengine.runner.disk.compile_cache import what_compiling_costs
from jengine.runner.joint_runner import launch_of
from jengine.runner.loaded_drafter import LoadedDrafter
from jengine.runner.runner import PlanRunner
from jengine.runner.runner_config import RunnerConfig
from jengine.runner.step.leaves import LeafOrder, Leaves
from jengine.runner.transfers.fork_runner import ForkRunner
from jengine.sampling_params import NEUTRAL
from jengine.weights.stage_places import StagePlaces
from sharding.jax_settings import engine_context
from sharding.mesh import steps_may_queue
from sharding.placement import Placement

logger = logging.getLogger(__name__)


class PlacedModel(NamedTuple):
    """A placed model and its drafter."""

    declared: nnx.Module
    order: LeafOrder
    leaves: Leaves
    drafter: LoadedDrafter | None


@engine_context()
def device_side(
    asked: Groups, source: ModelSource, bar: Callable[..., Any], direction: Direction | None
) -> DeviceSide:
    """Load the model on this process's devices and compile its steps. With `direction`, only the
    first process takes requests."""
    start_backend(asked.cache.gpu_memory_utilization)
    await_kernels(asked.steps.attention_backend, shown=asked.watch.show_progress is not False)
    asked = with_prompt_kernels(asked, source.config)
    settings = device_settings(asked, source)
    drafter = None if settings.drafter is None else settings.drafter.model
    steps = with_right_kernels(settings.steps, source.config, settings.placement, drafter)
    settings = replace(settings, steps=steps)
    with process_group_of(settings.placement, settings.multihost, direction) as group:
        agree_on_settings(group, asked.model, source, settings)
        if len(settings.placement.processes) > 1:
            agree_on_compile_cache(group.least, jax.process_index())
        grammars = core_grammars(source)
        model = place_model(asked, source, settings, group, bar)
        runners, cache = ready_runners(asked, source, settings, model, group, bar)
        group.agree(cache=cache)
        core = group.core(core_parts(asked, source, settings, runners, cache, grammars))
    return DeviceSide(
        core, runners, settings.schedule, cache, settings.depth, model.declared, model.order,
        grammars.compiler,
    )  # fmt: skip


def agree_on_settings(
    group: ProcessGroup, asked: ModelSettings, source: ModelSource, settings: DeviceSettings
) -> None:
    """Raise a ConfigError in every process if processes would compile different steps."""
    group.agree(
        versions=(jengine.__version__, jax.__version__),
        model=source.config,
        schedule=(settings.schedule, settings.depth, asked.seed),
        steps=settings.steps,
        devices=[device.id for device in settings.placement.mesh.devices.flat],
        multihost=replace(settings.multihost, address=None),
    )


def place_model(
    asked: Groups,
    source: ModelSource,
    settings: DeviceSettings,
    group: ProcessGroup,
    bar: Callable[..., Any],
) -> PlacedModel:
    """Read the parameters and place them in prepared form."""
    matmuls = settings.steps.matmuls
    apart = asked.media.mm_encoder_tp_mode == "data"
    whole = group.observed(settings.placement)
    places = StagePlaces(whole, settings.layout, whole_towers=apart)
    places = with_layers_on_host(asked.cache, source.config, places, matmuls)
    model, values = load_parameters(asked.model, source, places, bar)
    order = LeafOrder(model, places, matmuls)
    with explained(jax.errors.JaxRuntimeError, Doing.WEIGHTS):
        leaves = order.leaves(group.noted(values))
    if order.unfit:
        logger.warning(
            "XLA multiplies weights whose shards do not fit the CPU kernels: %s",
            ", ".join(order.unfit),
        )
    log_copies(order.copied_bytes(leaves), live=is_live(asked.model))
    group.agree_on_weights()
    loaded = None
    if settings.drafter is not None:  # its parameters may have the same names as the model's
        first = len(source.config.layers)
        loaded = settings.drafter.load(places.all_on_devices, matmuls, first, group.noted)
        group.agree_on_weights()
    return PlacedModel(model, order, leaves, loaded)


def ready_runners(
    asked: Groups,
    source: ModelSource,
    settings: DeviceSettings,
    model: PlacedModel,
    group: ProcessGroup,
    bar: Callable[..., Any],
) -> tuple[tuple[PlanRunner, ...], CacheConfig]:
    """A ready runner per replica, and the config of each one's cache."""
    with explained_if_slow(what_compiling_costs, asked.watch.show_progress is not False):
        runners, cache = build_runners(
            model.declared, model.leaves, source.config, settings.steps, model.order, bar,
            group.least, model.drafter,
        )  # fmt: skip
    for runner in runners:
        # Of joint replicas the first one holds the parameters.
        runner.loaded.read_weights = (
            weights_reader(asked.model, source, runner.loaded.order, bar)
            if runner.loaded.leaves
            else lambda _: ()
        )
        # Registered first, as set 1, which fronts assume; checked before any request.
        runner.loaded.processors.number_of(engine_processors(asked.steps.logits_processors))
    serve_weights(asked.model.weight_settings, runners[0].loaded)
    cache = replace(cache, measured_blocks=asked.cache.measured_blocks)
    runners, cache = with_external_blocks(runners, cache, asked, source, settings.placement)
    if cache.keeps_partial_blocks:
        runners = tuple(map(ForkRunner, runners))
    return runners, cache


def weights_reader(
    asked: ModelSettings, source: ModelSource, order: LeafOrder, bar: Callable[..., Any]
) -> Callable[[Leaves | None], Leaves] | None:
    """Function that reads a replica's parameters again; None for live ones, which have no
    folder."""
    if source.folder is None or asked.params is not None:
        return None

    def read(into: Leaves | None) -> Leaves:
        _, values = load_parameters(asked, source, order.places, bar)
        return order.leaves(values, into=into)

    return read


def core_parts(
    asked: Groups,
    source: ModelSource,
    settings: DeviceSettings,
    runners: tuple[PlanRunner, ...],
    cache: CacheConfig,
    grammars: CoreGrammars,
) -> CoreParts:
    """Collect the parts of this process's core."""
    watched = recorder_for(asked.watch, source, settings.schedule, cache)
    balancer = balancer_of(asked, source.config, settings.placement)
    return CoreParts(
        runners,
        settings.placement,
        settings.schedule,
        cache,
        settings.depth,
        settings.layout.num_stages,
        in_turn=not (settings.independent or settings.placement.joint),
        watched=lambda executor: grammars.around(watched(balancer(executor))),
        gates=(grammars.gate,),
        transfers=transfers_of(asked, source, cache, settings.placement.num_stages),
        launch=engine_context()(launch_of(runners)),
    )


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of the device side: placement, step programs and limits."""

    placement: Placement
    layout: StageLayout
    schedule: ScheduleConfig
    steps: RunnerConfig
    drafter: DrafterSource | None
    # Whether a step may be queued while another runs, of this replica or another.
    independent: bool
    depth: int  # steps in flight besides the running one
    multihost: MultihostSettings


def device_settings(asked: Groups, source: ModelSource) -> DeviceSettings:
    """Decide placement, step programs and limits, and check them against the processes that own the
    devices."""
    config = source.config
    penalises = any(source.generation.get(name, usual) != usual for name, usual in NEUTRAL.items())
    placement = placement_for(asked, config)
    devices = placement.replicas[0].mesh.size
    schedule = schedule_config(
        asked, config, penalises=penalises, devices=devices, stages=placement.num_stages
    )
    drafter = open_drafter(asked.model, source, schedule.speculative)
    schedule = with_draft_cost(schedule, drafter, config)
    layout = stage_layout(config, placement.num_stages)
    log_stages(layout, len(config.layers))
    independent = steps_may_queue((placement if placement.joint else placement.replicas[0]).mesh)
    overlap = OVERLAP_DEPTH if asked.schedule.overlap and independent else 0
    steps = runner_config(
        asked, config, schedule, layout.num_stages,
        penalises=penalises, same_bits=batch_dependence(asked.steps, config, devices) is None,
        drafter_specs=() if drafter is None else drafter.cache_specs,
    )  # fmt: skip
    schedule = with_sizes(schedule, steps.ladders)
    multihost = MultihostSettings.checked(
        asked.parallel.multihost, asked.parallel.data_parallel_secret
    )
    return DeviceSettings(
        placement=placement,
        layout=layout,
        schedule=schedule,
        steps=fitting_steps(asked, steps, placement.processes),
        drafter=drafter,
        independent=independent,
        depth=overlap + layout.num_stages - 1,
        multihost=multihost,
    )


def fitting_steps(asked: Groups, steps: RunnerConfig, processes: list[int]) -> RunnerConfig:
    """Adjust the runner's settings to the processes that run the steps, or raise."""
    check_processes(asked.parallel.executor, processes)
    check_nodes(asked.parallel, processes)
    refuse_halves(steps, processes)
    chosen = "wait_for" in asked.steps.compilation
    usual = device_defaults().early_start
    early = starts_early(steps, processes, chosen=chosen, usual=usual)
    return replace(steps, early_start=early)
