"""From EngineArgs to a running session: reads the folder and builds every room.

Each room gets its own settings only. Sizes are decided in sizes.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx

import jengine
from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.engine.args import EngineArgs
from jengine.engine.intake import Intake, Limits
from jengine.engine.session import Session
from jengine.engine.sizes import OVERLAP_DEPTH, runner_config, schedule_config
from jengine.engine.source import load_parameters, open_source
from jengine.engine.stats_log import StatsLog
from jengine.engine.team import CoreParts, team_of
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.multihost.settings import MultihostSettings
from jengine.models.stages import StageLayout, stage_layout
from jengine.runner.build import build_runners
from jengine.runner.compile_cache import enable_compile_cache
from jengine.runner.leaves import LeafOrder
from jengine.runner.runner import Runner
from jengine.sampling_params import SamplingParams
from jengine.text.tokenizer import Tokenizer
from jengine.weights.abstract import declaration
from jengine.weights.stages import StagePlaces
from sharding.mesh import engine_mesh, steps_may_queue
from sharding.placement import Placement
from sharding.replicas import mesh_of_replicas, replica_devices

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Engine:
    """Everything that `LLM` and `AsyncLLM` hold."""

    session: Session
    runners: tuple[Runner, ...]  # of each data-parallel replica
    args: EngineArgs
    folder: Path | None  # where the model came from; None: it was live
    model: ModelConfig
    schedule: ScheduleConfig
    cache: CacheConfig
    declared: nnx.Module  # the model with shapes for arrays: what new parameters must fit
    order: LeafOrder  # of the parameters of all replicas
    tokenizer: Tokenizer | None
    default_params: Mapping[str, Any]

    @property
    def runner(self) -> Runner:
        """The first replica's runner: programs, parameters and taps are the same in all."""
        return self.runners[0]

    @property
    def places(self) -> StagePlaces:
        """Where parameters lie."""
        return self.order.places

    @property
    def placement(self) -> Placement:
        """Where arrays lie that belong to no stage, and which devices there are."""
        return self.places.whole

    def check_leaves(self) -> None:
        """Refuse to run on parameters that somebody else has donated meanwhile."""
        for runner in self.runners:
            runner.check_leaves()


def build_engine(args: EngineArgs, bar: Callable[..., Any]) -> Engine:
    """Load the model and build an engine that is ready to serve."""
    compilation = dict(args.compilation_config or {})
    enable_compile_cache(compilation.get("cache_dir"))
    source = open_source(args)
    schedule = schedule_config(args, source.config)
    placement = placement_for(args, source.config)
    layout = stage_layout(source.config, placement.num_stages)
    _log_stages(layout, len(source.config.layers))
    # Whether a step may be queued while another runs, here or in another replica.
    independent = steps_may_queue(placement.replicas[0].mesh)
    overlap = OVERLAP_DEPTH if args.overlap and independent else 0
    depth = overlap + layout.num_stages - 1
    steps = runner_config(args, source.config, schedule, compilation, layout.num_stages)
    settings = MultihostSettings.checked(args.multihost)
    with team_of(placement, settings) as team:
        team.agree(
            versions=(jengine.__version__, jax.__version__),
            model=source.config,
            schedule=(schedule, depth, args.seed),
            steps=steps,
            devices=[device.id for device in placement.mesh.devices.flat],
            multihost=replace(settings, address=None),
        )
        places = StagePlaces(team.observed(placement), layout)
        model = load_parameters(args, source, places, bar)
        team.agree_on_weights(model)
        order = LeafOrder(model, places)
        runners, cache = build_runners(model, source.config, steps, order, bar, team.least)
        team.agree(cache=cache)
        parts = CoreParts(
            runners, placement, schedule, cache, depth, layout.num_stages, in_turn=not independent
        )
        core = team.core(parts)
    _log_capacity(cache, schedule, len(runners))
    limits = Limits(
        source.config.vocab_size, schedule.max_model_len, args.max_logprobs, source.eos_token_ids
    )
    log = None if args.disable_log_stats else StatsLog(core.counts, jax.default_backend())
    return Engine(
        session=Session(Intake(limits, source.tokenizer, args.seed), core, log),
        runners=runners,
        # Without the user's arrays: the engine must not keep old parameters alive.
        args=replace(args, model=str(source.folder), params=None),
        folder=source.folder,
        model=source.config,
        schedule=schedule,
        cache=cache,
        declared=declaration(model),
        order=order,
        tokenizer=source.tokenizer,
        default_params=_default_params(source.generation),
    )


def placement_for(args: EngineArgs, config: ModelConfig) -> Placement:
    """Where this model's arrays lie, on the devices that were asked for."""
    try:
        replicas = replica_devices(
            args.data_parallel_size,
            args.tensor_parallel_size,
            args.pipeline_parallel_size,
            args.mesh,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    heads = tuple(spec.kv_heads for spec in config.layers)
    mesh = mesh_of_replicas([engine_mesh(devices, heads) for devices in replicas])
    placement = Placement(mesh)
    if len(replicas) > 1 and len(placement.processes) > 1:
        raise UnsupportedFeature(
            f"data parallelism over several processes is not built yet: {len(replicas)} replicas "
            f"are asked for on devices of the processes {placement.processes}. Make one engine a "
            "process, with mesh= of its own devices, and divide the prompts among them."
        )
    return placement


def _default_params(generation: Mapping[str, Any]) -> dict[str, Any]:
    """SamplingParams fields that the model's generation_config.json sets."""
    names = {"max_new_tokens": "max_tokens"}
    fields = set(SamplingParams.__dataclass_fields__)
    named = {names.get(key, key): value for key, value in generation.items()}
    return {key: value for key, value in named.items() if key in fields}


def _log_stages(layout: StageLayout, layers: int) -> None:
    if layout.num_stages > 1:
        slots = layout.num_stages * layout.num_slots
        logger.info("%d layers in %d stages of %d slots, %d of which stay empty",
                    layers, layout.num_stages, layout.num_slots, slots - layers)  # fmt: skip


def _log_capacity(cache: CacheConfig, schedule: ScheduleConfig, replicas: int) -> None:
    tokens = (min(cache.num_blocks) - 1) * cache.block_size
    device = jax.default_backend().upper()
    if replicas > 1:
        logger.info("%d data-parallel replicas, each with:", replicas)
    logger.info("%s KV cache size: %s tokens", device, f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{schedule.max_model_len:,}", tokens / schedule.max_model_len,
    )  # fmt: skip
