"""Checks of an engine's settings, each by itself and against others. No jax.

In: EngineArgs as given. Out: the same in their final form (defaults for None, sizes as numbers,
templates as text), or a ConfigError. Must not know the model or the devices.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING

from jengine.assembly.settings import derived_values
from jengine.assembly.settings.dict_settings import (
    COMPILATION_KEYS,
    PROFILER_KEYS,
    checked_keys,
    compiler_settings,
)
from jengine.assembly.settings.media_settings import checked_media
from jengine.assembly.settings.pooling_settings import (
    checked_overrides,
    checked_pooler_config,
    runner_and_conversion,
)
from jengine.assembly.settings.ranks import checked_rank_options
from jengine.assembly.settings.reasoning_settings import check_reasoning_config
from jengine.assembly.settings.structured_settings import checked_reasoning_parser
from jengine.assembly.settings.values import (
    check_types,
    count_or_all,
    engine_functions,
    human_integer,
    one_of,
    share,
    template_text,
)
from jengine.config import CACHE_CODES
from jengine.connectors.settings import named_engine
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.executor.choice import checked_executor
from jengine.scheduler.orders import order_of
from jengine.speculative.config import speculative_config

if TYPE_CHECKING:
    from jengine.assembly.settings.args import EngineArgs

# Settings that may be given as text: "4096", "32k".
SIZES = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "kv_cache_memory_bytes",
    "block_size",
    "num_gpu_blocks_override",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
    "flight_recorder_steps",
    "mamba_block_size",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
)


def check_args(args: EngineArgs) -> None:
    """Bring settings to their final form in place, or raise a ConfigError about one of them."""
    fill_defaults(args)
    checked_keys("compilation_config", args.compilation_config, COMPILATION_KEYS)
    refuse_foreign_code(args)
    convert_values(args)
    check_choices(args)
    args.pooler_config = checked_pooler_config(args.pooler_config)
    args.hf_overrides = checked_overrides(args.hf_overrides)
    args.runner, args.convert = runner_and_conversion(args.runner, args.convert, args.task)
    if args.speculative_config is not None:
        speculative_config(args.speculative_config)
    divide_replicas(args)
    check_derived(args)
    args.logits_processors = engine_functions("logits_processors", args.logits_processors)
    args.reasoning_parser = checked_reasoning_parser(
        args.reasoning_parser, args.structured_outputs_config
    )
    check_reasoning_config(args.reasoning_parser, args.reasoning_config)


def fill_defaults(args: EngineArgs) -> None:
    """Put the default in place of None."""
    for item in fields(args):
        if getattr(args, item.name) is None and item.default is not MISSING:
            setattr(args, item.name, item.default)


def refuse_foreign_code(args: EngineArgs) -> None:
    """Refuse to run code from model folders."""
    if args.trust_remote_code:
        raise UnsupportedFeature(
            "trust_remote_code=True: code from model folders is never run, by design. "
            "Supported architectures are built in; leave it out."
        )


def convert_values(args: EngineArgs) -> None:
    """Turn text into sizes, switches and templates, and check the types of all settings."""
    for name in SIZES:
        setattr(args, name, human_integer(name, getattr(args, name)))
    if args.pack_weights == "false":  # as on the command line
        args.pack_weights = False
    check_types(args)
    if args.data_parallel_backend == "ray" and args.data_parallel_secret is None:
        args.data_parallel_secret = secrets.token_hex(32)  # Ray tells it to the ranks
    checked_rank_options(args.data_parallel_backend, args.data_parallel_options)
    if args.chat_template is not None:
        args.chat_template = template_text("chat_template", args.chat_template)


def check_choices(args: EngineArgs) -> None:
    """Refuse values out of range, and settings that contradict each other."""
    if args.strict and args.enforce_eager:
        raise ConfigError(
            "strict=True forbids compiling after warm-up, and enforce_eager=True leaves the "
            "warm-up out; give one of them."
        )
    checked_executor(args.executor)
    order_of(args.scheduling_policy)
    one_of("kv_cache_dtype", args.kv_cache_dtype, tuple(CACHE_CODES))
    if None not in (args.num_gpu_blocks_override, args.kv_cache_memory_bytes):
        raise ConfigError(
            "num_gpu_blocks_override and kv_cache_memory_bytes both size the KV cache; give "
            "one of them."
        )
    share("kv_cache_metrics_sample", args.kv_cache_metrics_sample)
    share("gpu_memory_utilization", args.gpu_memory_utilization)
    count_or_all("max_logprobs", args.max_logprobs)
    if args.seed is not None and (isinstance(args.seed, bool) or not isinstance(args.seed, int)):
        raise ConfigError(f"seed={args.seed!r}: expected an integer.")
    check_offload(args)
    args.limit_mm_per_prompt = checked_media(
        args.limit_mm_per_prompt, args.allowed_local_media_path, args.allowed_media_domains
    )


def check_offload(args: EngineArgs) -> None:
    """Refuse sizes that are none, and what moves or repeats layers in the host's memory."""
    given = args.cpu_offload_gb
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise ConfigError(f"cpu_offload_gb={given!r}: expected GiB, 0 or more.")
    for name, is_set in (
        ("num_scheduler_steps", args.num_scheduler_steps > 1), ("enable_eplb", args.enable_eplb),
    ):  # fmt: skip
        if given and is_set:
            raise UnsupportedFeature(
                f"cpu_offload_gb with {name}: layers in the host's memory are not built there. "
                "Give one of them."
            )


def divide_replicas(args: EngineArgs) -> None:
    """Where each node has whole replicas, they are ranks that join the one of node 0."""
    nodes = derived_values.nodes(args)
    nodes.check(args.executor)
    local = nodes.local_replicas(args.data_parallel_size or 1)
    if nodes.several and local is not None:
        args.data_parallel_size_local = local
        args.data_parallel_start_rank = args.node_rank * local
        args.data_parallel_address = args.data_parallel_address or args.master_addr
        args.nnodes, args.node_rank = 1, 0


def check_derived(args: EngineArgs) -> None:
    """Refuse settings from which nothing can be derived, and name the engine to connectors."""
    derived_values.ranks(args)
    derived_values.transfers(args)
    derived_values.kv_events(args)
    derived_values.shared_weights(args)
    args.kv_transfer_config = named_engine(args.kv_transfer_config)
    derived_values.warm_up(args).check()
    compiler_settings(args.compilation_config)
    check_profiler(args)
    derived_values.adapter_limits(args)
    derived_values.expert_balance(args)


def check_profiler(args: EngineArgs) -> None:
    """Refuse a profiler that is not known."""
    config = args.profiler_config or {}
    checked_keys("profiler_config", args.profiler_config, PROFILER_KEYS)
    if config:
        one_of("profiler_config['profiler']", config.get("profiler"), ("jax", "torch"))
