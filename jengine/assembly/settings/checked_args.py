"""Checks of an engine's settings, each by itself and against others. No jax.

In: EngineArgs as given. Out: the same in their final form (defaults for None, sizes as numbers,
templates as text), or a ConfigError. Must not know the model or the devices.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.dict_settings import (
    COMPILATION_KEYS,
    PROFILER_KEYS,
    checked_keys,
    compiler_settings,
)
from jengine.assembly.settings.media_settings import checked_media
from jengine.assembly.settings.pooling_settings import runner_and_conversion
from jengine.assembly.settings.ranks import checked_rank_options
from jengine.assembly.settings.reasoning_settings import check_reasoning_config
from jengine.assembly.settings.setting import Setting
from jengine.assembly.settings.structured_settings import checked_reasoning_parser
from jengine.assembly.settings.values import check_types, human_integer, one_of
from jengine.connectors.settings import named_engine
from jengine.errors import ConfigError, UnsupportedFeature

if TYPE_CHECKING:
    from jengine.assembly.settings.args import EngineArgs

# Properties of EngineArgs that raise if nothing can be derived.
DERIVED = ("ranks", "transfers", "kv_events", "weight_settings", "adapter_limits", "expert_balance")


def check_args(args: EngineArgs, settings: Mapping[str, Setting]) -> None:
    """Bring settings to their final form in place, or raise a ConfigError about one of them."""
    for item in fields(args):
        if getattr(args, item.name) is None and item.default is not MISSING:
            setattr(args, item.name, item.default)
    checked_keys("compilation_config", args.compilation_config, COMPILATION_KEYS)
    for name in [name for name, one in settings.items() if one.size]:
        setattr(args, name, human_integer(name, getattr(args, name)))
    if args.pack_weights == "false":  # as on the command line
        args.pack_weights = False
    check_types(args)
    for name, one in settings.items():
        value = getattr(args, name)
        if value is not None and one.check is not None:
            one.check(value)
        if value is not None and one.final is not None:
            setattr(args, name, one.final(value))
    check_together(args)
    divide_replicas(args)
    for name in DERIVED:
        getattr(args, name)
    args.kv_transfer_config = named_engine(args.kv_transfer_config)
    args.warm_up.check()


def check_together(args: EngineArgs) -> None:
    """Raise ConfigError for contradicting settings; set those that follow from others."""
    if args.data_parallel_backend == "ray" and args.data_parallel_secret is None:
        args.data_parallel_secret = secrets.token_hex(32)  # Ray tells it to the ranks
    checked_rank_options(args.data_parallel_backend, args.data_parallel_options)
    if args.strict and args.enforce_eager:
        raise ConfigError(
            "strict=True forbids compiling after warm-up, and enforce_eager=True leaves the "
            "warm-up out; give one of them."
        )
    if None not in (args.num_gpu_blocks_override, args.kv_cache_memory_bytes):
        raise ConfigError(
            "num_gpu_blocks_override and kv_cache_memory_bytes both size the KV cache; give "
            "one of them."
        )
    offloaded = {
        "num_scheduler_steps": args.num_scheduler_steps > 1, "enable_eplb": args.enable_eplb,
    }  # fmt: skip
    for name in [name for name, is_set in offloaded.items() if is_set and args.cpu_offload_gb]:
        raise UnsupportedFeature(
            f"cpu_offload_gb with {name}: layers in the host's memory are not built there. "
            "Give one of them."
        )
    args.limit_mm_per_prompt = checked_media(
        args.limit_mm_per_prompt, args.allowed_local_media_path, args.allowed_media_domains
    )
    compiler_settings(args.compilation_config)
    args.runner, args.convert = runner_and_conversion(args.runner, args.convert, args.task)
    args.reasoning_parser = checked_reasoning_parser(
        args.reasoning_parser, args.structured_outputs_config
    )
    check_reasoning_config(args.reasoning_parser, args.reasoning_config)


def divide_replicas(args: EngineArgs) -> None:
    """Where each node has whole replicas, they are ranks that join the one of node 0."""
    nodes = args.nodes
    nodes.check(args.executor)
    local = nodes.local_replicas(args.data_parallel_size or 1)
    if nodes.several and local is not None:
        args.data_parallel_size_local = local
        args.data_parallel_start_rank = args.node_rank * local
        args.data_parallel_address = args.data_parallel_address or args.master_addr
        args.nnodes, args.node_rank = 1, 0


def refuse_foreign_code(trusted: bool) -> None:
    """Refuse to run code from model folders."""
    if trusted:
        raise UnsupportedFeature(
            "trust_remote_code=True: code from model folders is never run, by design. "
            "Supported architectures are built in; leave it out."
        )


def check_offload(given: float) -> None:
    """Refuse sizes that are none."""
    if not 0 <= given < math.inf:
        raise ConfigError(f"cpu_offload_gb={given!r}: expected GiB, 0 or more.")


def check_profiler(given: Mapping[str, Any]) -> None:
    """Refuse a profiler that is not known."""
    checked_keys("profiler_config", given, PROFILER_KEYS)
    if given:
        one_of("profiler_config['profiler']", given.get("profiler"), ("jax", "torch"))
