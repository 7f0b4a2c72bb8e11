"""Decisions about an engine's devices before its parameters are read.

In: the user's settings and the model's source. Out: a DeviceSettings, or an error. Must not know
parameters or other processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jengine.assembly.guesser import GuesserSource, open_guesser, with_guess_cost
from jengine.assembly.mesh_placement import placement_for
from jengine.assembly.model_facts import ModelSource
from jengine.assembly.nodes import check_nodes
from jengine.assembly.process_checks import check_processes, refuse_halves, starts_early
from jengine.assembly.settings.groups import Groups
from jengine.assembly.sizes.determinism import batch_dependence
from jengine.assembly.sizes.device_defaults import OVERLAP_DEPTH, device_defaults
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config, with_sizes
from jengine.assembly.start_log import log_stages
from jengine.config import ScheduleConfig
from jengine.executor.multihost.settings import MultihostSettings
from jengine.models.stages import StageLayout, stage_layout
from jengine.runner.runner_config import RunnerConfig
from sharding.mesh import steps_may_queue
from sharding.placement import Placement

# Entries of generation_config.json that give every request a penalty, and their neutral values.
NO_PENALTY = (("repetition_penalty", 1.0), ("presence_penalty", 0.0), ("frequency_penalty", 0.0))


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of the device side: placement, step programs and limits."""

    placement: Placement
    layout: StageLayout
    schedule: ScheduleConfig
    steps: RunnerConfig
    guesser: GuesserSource | None
    # Whether a step may be queued while another runs, here or in another replica.
    independent: bool
    depth: int  # steps in flight besides the one that runs
    multihost: MultihostSettings


def device_settings(asked: Groups, source: ModelSource) -> DeviceSettings:
    """Decide placement, steps and limits, and check them against the processes that own the
    devices."""
    config = source.config
    penalises = any(source.generation.get(name, usual) != usual for name, usual in NO_PENALTY)
    placement = placement_for(asked, config)
    devices = placement.replicas[0].mesh.size
    schedule = schedule_config(
        asked, config, penalises=penalises, devices=devices, stages=placement.num_stages
    )
    guesser = open_guesser(asked.model, source, schedule.speculative)
    schedule = with_guess_cost(schedule, guesser, config)
    layout = stage_layout(config, placement.num_stages)
    log_stages(layout, len(config.layers))
    independent = steps_may_queue((placement if placement.joint else placement.replicas[0]).mesh)
    overlap = OVERLAP_DEPTH if asked.schedule.overlap and independent else 0
    steps = runner_config(
        asked, config, schedule, layout.num_stages,
        penalises=penalises, same_bits=batch_dependence(asked.steps, config, devices) is None,
        guesser_specs=() if guesser is None else guesser.cache_specs,
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
        guesser=guesser,
        independent=independent,
        depth=overlap + layout.num_stages - 1,
        multihost=multihost,
    )


def fitting_steps(asked: Groups, steps: RunnerConfig, processes: list[int]) -> RunnerConfig:
    """The runner's settings for steps that these processes run, or an error."""
    check_processes(asked.parallel.executor, processes)
    check_nodes(asked.parallel, processes)
    refuse_halves(steps, processes)
    chosen = "wait_for" in asked.steps.compilation
    usual = device_defaults().early_start
    early = starts_early(steps, processes, chosen=chosen, usual=usual)
    return replace(steps, early_start=early)
