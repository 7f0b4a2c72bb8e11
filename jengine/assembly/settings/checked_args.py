"""Checks of an engine's settings, each by itself and against others. No jax.

In: EngineArgs as given. Out: the same normalised (defaults for None, sizes as numbers, templates as
text), or a ConfigError. Must not know the model or the devices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.dict_settings import (
    COMPILATION_KEYS,
    PROFILER_KEYS,
    checked_keys,
    compiler_settings,
)
from jengine.assembly.settings.pooling_settings import runner_and_conversion
from jengine.assembly.settings.ranks import checked_rank_options
from jengine.assembly.settings.reasoning_settings import check_reasoning_config
from jengine.assembly.settings.setting import Setting
from jengine.assembly.settings.structured_settings import checked_reasoning_parser
from jengine.assembly.settings.values import check_types, human_integer, one_of
from jengine.connectors.settings import named_engine
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.media.options import checked_limits
from jengine.wire.doors import new_secret

if TYPE_CHECKING:
    from jengine.assembly.settings.args import EngineArgs

_HOST = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|[0-9a-f:.]*:[0-9a-f:.]*", re.IGNORECASE)
# Properties of EngineArgs that raise for invalid settings.
DERIVED = ("ranks", "transfers", "kv_events", "weight_settings", "adapter_limits", "expert_balance")


def check_args(args: EngineArgs, settings: Mapping[str, Setting]) -> None:
    """Normalise settings in place, or raise a ConfigError about one of them."""
    for item in fields(args):
        if getattr(args, item.name) is None and item.default is not MISSING:
            setattr(args, item.name, item.default)
    checked_keys("compilation_config", args.compilation_config, COMPILATION_KEYS)
    for name in [name for name, one in settings.items() if one.size]:
        setattr(args, name, human_integer(name, getattr(args, name)))
    if args.pack_weights == "false":  # from the command line
        args.pack_weights = False
    check_types(args)
    for name, one in settings.items():
        value = getattr(args, name)
        if value is not None and one.check is not None:
            one.check(value)
        if value is not None and one.final is not None:
            setattr(args, name, one.final(value))
    if args.data_parallel_backend == "ray" and args.data_parallel_secret is None:
        args.data_parallel_secret = new_secret()  # Ray sends it to the ranks
    checked_rank_options(args.data_parallel_backend, args.data_parallel_options)
    check_compiling(args.strict, args.enforce_eager)
    check_cache_size(args.num_gpu_blocks_override, args.kv_cache_memory_bytes)
    check_offloaded(
        args.cpu_offload_gb,
        num_scheduler_steps=args.num_scheduler_steps > 1,
        enable_eplb=args.enable_eplb,
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
    args.nodes.check(args.executor)
    joined = args.nodes.joined_replicas(args.data_parallel_size or 1, args.data_parallel_address)
    for name, value in joined.items():
        setattr(args, name, value)
    for name in DERIVED:
        getattr(args, name)
    args.kv_transfer_config = named_engine(args.kv_transfer_config)
    args.warm_up.check()


def check_compiling(strict: bool, enforce_eager: bool) -> None:
    """Raise ConfigError for strict=True with enforce_eager=True: no program could be compiled."""
    if strict and enforce_eager:
        raise ConfigError(
            "strict=True forbids compiling after warm-up, and enforce_eager=True leaves the "
            "warm-up out; give one of them."
        )


def check_cache_size(blocks: int | None, size: int | None) -> None:
    """Raise ConfigError if both settings of the KV cache's size are given."""
    if None not in (blocks, size):
        raise ConfigError(
            "num_gpu_blocks_override and kv_cache_memory_bytes both size the KV cache; give "
            "one of them."
        )


def check_offloaded(offloaded: float, **used: bool) -> None:
    """Raise UnsupportedFeature for a setting in use that cannot be combined with cpu_offload_gb."""
    for name in [name for name, is_used in used.items() if is_used and offloaded]:
        raise UnsupportedFeature(
            f"cpu_offload_gb with {name}: layers in the host's memory are not built there. "
            "Give one of them."
        )


def check_offload(given: float) -> None:
    """Raise ConfigError unless it is finite and not negative."""
    if not 0 <= given < math.inf:
        raise ConfigError(f"cpu_offload_gb={given!r}: expected GiB, 0 or more.")


def check_profiler(given: Mapping[str, Any]) -> None:
    """Raise ConfigError for an unknown key or profiler."""
    checked_keys("profiler_config", given, PROFILER_KEYS)
    if given:
        one_of("profiler_config['profiler']", given.get("profiler"), ("jax", "torch"))


def checked_media(
    limits: Any, folder: str | Path, domains: Sequence[str] | None
) -> dict[str, int] | None:
    """Return the validated limits per media kind. Raises ConfigError for an unknown kind, a path
    that is no folder, or a domain that is no host name."""
    try:
        numbers = None if limits is None else checked_limits(limits)
    except RequestError as error:
        raise ConfigError(str(error)) from None
    if folder and not Path(folder).is_dir():
        raise ConfigError(f"allowed_local_media_path={str(folder)!r}: expected a folder.")
    for one in domains or ():
        if not _HOST.fullmatch(one):
            raise ConfigError(
                f"allowed_media_domains has {one!r}; expected names or addresses of hosts, such as "
                "'images.example.org', without scheme, port and path."
            )
    return numbers
