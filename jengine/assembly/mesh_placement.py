"""The mesh of an engine's devices, and the placement of a model's arrays on it.

In: parallel sizes, and the model's config. Out: a placement, or a ConfigError.
"""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import Mesh

from jengine.assembly.settings.combinations import refuse_together
from jengine.assembly.settings.groups import Groups
from jengine.assembly.settings.parallel_args import ParallelSettings
from jengine.config import ExpertsConfig, ModelConfig
from jengine.errors import ConfigError, UnsupportedFeature
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from sharding.replicas import mesh_of_replicas, replica_devices
from sharding.roles import by_role


def placement_for(asked: Groups, config: ModelConfig) -> Placement:
    """The model's placement on a mesh of the requested devices."""
    parallel = asked.parallel
    groups = parallel.prefill_context_parallel_size
    try:
        replicas = replica_devices(
            parallel.data_parallel_size,
            devices_per_stage(parallel),
            parallel.pipeline_parallel_size,
            by_role(parallel.mesh, parallel.mesh_axes),
        )
    except ValueError as error:
        counted = f" (prefill_context_parallel_size={groups} is counted in.)" * (groups > 1)
        raise ConfigError(f"{error}{counted}") from error
    mesh = mesh_of_replicas([stages_mesh(parallel, config, devices) for devices in replicas])
    balance = parallel.expert_balance
    redundant = None if balance is None else balance.num_redundant_experts
    if parallel.enable_expert_parallel:
        check_experts(config, Placement(mesh, joint=parallel.joint_replicas), redundant or 0)
    elif parallel.all2all_backend != "allgather_reducescatter":
        raise ConfigError(
            f"all2all_backend={parallel.all2all_backend!r} without enable_expert_parallel=True: "
            "each device has a part of every expert, so tokens need not travel. Give both or "
            "neither."
        )
    placement = Placement(
        mesh,
        whole_experts=parallel.enable_expert_parallel,
        expert_exchange=parallel.all2all_backend,
        redundant_experts=redundant,
        joint=parallel.joint_replicas,
    )
    if parallel.joint_replicas:
        check_joint(asked, config, placement)
    if groups > 1:
        check_context_parallel(asked, config, placement)
    if balance is not None:
        check_balance(asked, placement)
    if len(replicas) > 1 and len(placement.processes) > 1:
        raise UnsupportedFeature(
            f"data parallelism over several processes is not built yet: {len(replicas)} replicas "
            f"are asked for on devices of the processes {placement.processes}. Make one engine per "
            "process, with mesh= of that process's devices, and divide the prompts among them."
        )
    return placement


def devices_per_stage(asked: ParallelSettings) -> int | None:
    """Number of devices per stage; None: all available."""
    tensor, groups = asked.tensor_parallel_size, asked.prefill_context_parallel_size
    if tensor is None and (groups == 1 or asked.mesh is not None or jax.process_count() > 1):
        return None
    return (tensor or 1) * groups


def stages_mesh(asked: ParallelSettings, config: ModelConfig, devices: np.ndarray) -> Mesh:
    """The mesh of one replica's devices, [stages, devices per stage]."""
    heads = tuple(spec.kv_heads for spec in config.cache_specs)
    context = asked.decode_context_parallel_size
    check_divided(config, context)
    try:
        return engine_mesh(devices, heads, context, asked.prefill_context_parallel_size)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def check_divided(config: ModelConfig, context: int) -> None:
    """Raise if decode context parallelism does not support this model."""
    if context > 1 and not any(spec.keeps_all for spec in config.cache_specs):
        raise ConfigError(
            f"decode_context_parallel_size={context}: {config.architecture} has no attention that "
            "reads all tokens of a request, so there is nothing to divide. Leave it out."
        )
    if context > 1 and config.has_slopes:
        raise UnsupportedFeature(
            f"decode_context_parallel_size={context} with {config.architecture}: scores with slopes"
            " (ALiBi) are not built for divided blocks. Leave it out."
        )


def check_joint(asked: Groups, config: ModelConfig, placement: Placement) -> None:
    """Raise for features that joint replicas (`joint_replicas`) do not support."""
    if not asked.parallel.enable_expert_parallel or len(placement.replicas) == 1:
        raise ConfigError(
            "joint_replicas=True spreads whole experts over all replicas: give "
            "enable_expert_parallel=True and a data_parallel_size of at least 2 with it."
        )
    others = {
        f"pipeline_parallel_size={placement.num_stages}": placement.num_stages > 1,
        **asked.in_use(
            "data_parallel_backend",
            "executor",
            "num_scheduler_steps",
            "speculative_config",
            "strict",
            "deterministic",
            "enable_lora",
            "enable_sleep_mode",
        ),
        "recurrent layers": config.has_recurrent,
        "a pooling model": config.pooling is not None,
        "images": config.vision is not None,
        "cross attention": config.cross_encoder is not None,
        "copies of KV blocks outside of the device": asked.cache.transfers is not None,
    }
    refuse_together("joint_replicas", others)


def check_context_parallel(asked: Groups, config: ModelConfig, placement: Placement) -> None:
    """Raise for features that prefill context parallelism does not support."""
    others = {
        f"pipeline_parallel_size={placement.num_stages}": placement.num_stages > 1,
        **asked.in_use("num_scheduler_steps"),
        f"executor={asked.parallel.executor!r}": asked.parallel.executor
        not in ("auto", "local", "multihost"),
        **asked.in_use(
            "deterministic",
            "enable_prompt_embeds",
            "enable_expert_parallel",
            "enable_return_routed_experts",
            "joint_replicas",
        ),
    }
    groups = asked.parallel.prefill_context_parallel_size
    refuse_together(
        f"prefill_context_parallel_size={groups}", {**others, **beyond_context_parallel(config)}
    )


def beyond_context_parallel(config: ModelConfig) -> dict[str, bool]:
    """Model properties that rule out prefill context parallelism -> whether the model has each."""
    attention = all(not (spec.in_parts or spec.in_chunks) for spec in config.cache_specs)
    return {
        f"{config.architecture}, whose layers are not all of attention to cached tokens": (
            not attention or config.sees_ahead
        ),
        "a pooling model": config.pooling is not None,
        "images": config.vision is not None,
        "cross attention": config.cross_encoder is not None,
    }


def check_balance(asked: Groups, placement: Placement) -> None:
    """Raise for features that expert load balancing does not support."""
    if not asked.parallel.enable_expert_parallel or placement.ways("experts") == 1:
        raise ConfigError(
            "enable_eplb=True moves whole experts between devices: give "
            "enable_expert_parallel=True and a tensor_parallel_size of at least 2 with it."
        )
    refuse_together(
        "enable_eplb",
        {
            f"pipeline_parallel_size={placement.num_stages}": placement.num_stages > 1,
            f"data_parallel_size={asked.parallel.data_parallel_size}": (
                asked.parallel.data_parallel_size or 1
            )
            > 1,
            **asked.in_use("executor"),
            f"devices of the processes {placement.processes}": len(placement.processes) > 1,
            f"quantization={asked.model.quantization!r}": asked.model.quantization is not None,
            **asked.in_use("deterministic"),
        },
    )


def check_experts(config: ModelConfig, placement: Placement, redundant: int) -> None:
    """Raise ConfigError unless experts divide evenly among devices."""
    if not config.has_experts:
        raise ConfigError(
            f"enable_expert_parallel=True: {config.architecture} has no experts. Leave it out."
        )
    ways = placement.ways("experts")
    for layer in config.layers:
        if isinstance(layer.ffn, ExpertsConfig) and (layer.ffn.num_experts + redundant) % ways:
            more = f" and {redundant} redundant ones" if redundant else ""
            raise ConfigError(
                f"enable_expert_parallel=True: {layer.ffn.num_experts} experts{more} cannot be "
                f"spread evenly over {ways} devices. Use tensor_parallel_size that divides them, "
                "or leave it out."
            )
