"""Values that follow from several settings of an engine. No jax.

In: EngineArgs. Out: what other rooms take in place of single settings, or a ConfigError about what
cannot be meant. `EngineArgs` has a property for each of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jengine.adapters import AdapterLimits
from jengine.assembly.settings import adapter_settings
from jengine.assembly.settings.expert_settings import balance_config
from jengine.assembly.settings.nodes import Nodes
from jengine.assembly.settings.ranks import Ranks
from jengine.assembly.settings.warm_up import WarmUp
from jengine.config import CACHE_CODES, BalanceConfig
from jengine.connectors.kv_events import EventSettings, event_settings
from jengine.connectors.settings import TransferSettings, transfer_settings
from jengine.connectors.weight_settings import WeightSettings, weight_settings
from jengine.hub.options import HubOptions

if TYPE_CHECKING:
    from jengine.assembly.settings.args import EngineArgs


def nodes(args: EngineArgs) -> Nodes:
    """The nodes that run the steps of one replica."""
    return Nodes(args.nnodes, args.node_rank, args.master_addr, args.master_port)


def hub_options(args: EngineArgs) -> HubOptions:
    """How repositories of the Hugging Face Hub are asked for."""
    return HubOptions(
        args.revision, args.download_dir, args.hf_token, tuple(args.ignore_patterns or ())
    )


def adapter_limits(args: EngineArgs) -> AdapterLimits | None:
    """How many LoRA adapters there may be, and how large; None: no request has any."""
    return adapter_settings.adapter_limits(
        args.enable_lora, args.max_loras, args.max_lora_rank, args.max_cpu_loras,
        args.lora_dtype, args.lora_target_modules,
    )  # fmt: skip


def replicas_in_processes(args: EngineArgs) -> bool:
    """Whether there are several replicas, each in a process of its own."""
    ranks = args.ranks
    return ranks.size > 1 and (args.data_parallel_backend != "local" or ranks.elsewhere > 0)


def devices_per_replica(args: EngineArgs) -> int:
    """How many devices each replica takes, as far as settings tell."""
    per_stage = (args.tensor_parallel_size or 1) * args.prefill_context_parallel_size
    return per_stage * (args.pipeline_parallel_size or 1)


def ranks(args: EngineArgs) -> Ranks:
    """The data-parallel ranks, here and on other hosts."""
    if args.data_parallel_backend == "ray":
        return Ranks.on_ray(
            args.data_parallel_size,
            args.data_parallel_size_local,
            args.data_parallel_start_rank,
        )
    return Ranks.checked(
        args.data_parallel_size,
        args.data_parallel_size_local,
        args.data_parallel_start_rank,
        args.data_parallel_address,
    )


def kv_events(args: EngineArgs) -> EventSettings | None:
    """Where it is published which blocks are cached; None: nowhere."""
    return event_settings(args.kv_events_config)


def transfers(args: EngineArgs) -> TransferSettings | None:
    """Where blocks of the cache are kept outside of the device; None: nowhere."""
    return transfer_settings(
        args.kv_offloading_size, args.kv_offloading_backend, args.kv_transfer_config
    )


def shared_weights(args: EngineArgs) -> WeightSettings | None:
    """Weights that are served to other engines or taken from one; None: neither."""
    return weight_settings(args.load_format, args.model_loader_extra_config)


def expert_balance(args: EngineArgs) -> BalanceConfig | None:
    """How experts move between devices; None: they do not."""
    return balance_config(args.enable_eplb, args.eplb_config)


def measured_blocks(args: EngineArgs) -> float:
    """The share of KV cache blocks whose stay is measured."""
    return args.kv_cache_metrics_sample if args.kv_cache_metrics else 0.0


def cache_codes(args: EngineArgs) -> str | None:
    """What the KV cache holds in place of the model's dtype."""
    return CACHE_CODES[args.kv_cache_dtype]


def profile_folder(args: EngineArgs) -> str | None:
    """Where traces are written; None if profiler_config names no folder."""
    config = args.profiler_config or {}
    return config.get("dir") or config.get("torch_profiler_dir")


def warm_up(args: EngineArgs) -> WarmUp:
    """The settings that decide which programs are compiled before requests are admitted."""
    return WarmUp(
        (args.compilation_config or {}).get("wait_for"),
        seeded=args.seed is not None,
        deterministic=args.deterministic,
        strict=args.strict,
        enforce_eager=args.enforce_eager,
        num_scheduler_steps=args.num_scheduler_steps,
        executor=args.executor,
    )
