"""From EngineArgs to a running session: reads the folder, decides sizes, builds every room.

The one place where defaults meet the model and the device. Each room gets its own settings only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.engine.args import EngineArgs
from jengine.engine.core import EngineCore
from jengine.engine.intake import Intake, Limits
from jengine.engine.session import Session
from jengine.engine.stats_log import StatsLog
from jengine.errors import ConfigError, UnsupportedFeature, nearest_name
from jengine.executor.local import LocalExecutor
from jengine.kvcache.manager import CacheManager
from jengine.kvcache.specs import blocks_needed
from jengine.models.decoder import Decoder
from jengine.runner.buckets import Ladders, StepShapes, default_ladders
from jengine.runner.build import RunnerConfig, build_runner
from jengine.runner.compile_cache import enable_compile_cache
from jengine.runner.features import Features, variants
from jengine.runner.runner import Runner
from jengine.sampling_params import SamplingParams
from jengine.scheduler.scheduler import Scheduler
from jengine.text.tokenizer import Tokenizer, load_tokenizer, wrap_tokenizer
from jengine.weights.dummy import dummy_model
from jengine.weights.folder import read_generation_config, read_model_config, resolve_model
from jengine.weights.safetensors_io import load_model
from sharding.placement import Placement, one_device_mesh

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
PREFILL_TILE = 32
# Plans that may be in flight while one is read.
OVERLAP_DEPTH = 1


@dataclass(frozen=True)
class DeviceDefaults:
    """Sizes that suit a kind of device."""

    max_num_seqs: int
    max_num_batched_tokens: int


DEVICE_DEFAULTS = {"cpu": DeviceDefaults(8, 512), "gpu": DeviceDefaults(256, 8192)}


@dataclass(frozen=True)
class Engine:
    """Everything that `LLM` and `AsyncLLM` hold."""

    session: Session
    runner: Runner
    args: EngineArgs
    model: ModelConfig
    schedule: ScheduleConfig
    cache: CacheConfig
    tokenizer: Tokenizer | None
    default_params: Mapping[str, Any]


def build_engine(args: EngineArgs, bar: Callable[..., Any]) -> Engine:
    """Load the model and build an engine that is ready to serve."""
    compilation = dict(args.compilation_config or {})
    enable_compile_cache(compilation.get("cache_dir"))
    folder = resolve_model(args.model)
    tokenizer = _tokenizer(args, folder)
    generation = read_generation_config(folder) if args.generation_config == "auto" else {}
    config = read_model_config(folder)
    schedule = schedule_config(args, config)
    model = _load(args, folder, config, bar)
    config = model.config
    runner_config = _runner_config(args, config, schedule, compilation)
    runner, cache = build_runner(model, config, runner_config, bar)
    _log_capacity(cache, schedule)
    depth = OVERLAP_DEPTH if args.overlap else 0
    scheduler = Scheduler(schedule, CacheManager(cache), depth=depth)
    limits = Limits(
        config.vocab_size, schedule.max_model_len, args.max_logprobs,
        _eos_ids(config, generation, tokenizer),
    )  # fmt: skip
    intake = Intake(limits, tokenizer, args.seed)
    log = None if args.disable_log_stats else StatsLog(scheduler, jax.default_backend())
    session = Session(intake, EngineCore(scheduler, LocalExecutor(runner), depth), log)
    defaults = _default_params(generation)
    return Engine(session, runner, args, config, schedule, cache, tokenizer, defaults)


def schedule_config(args: EngineArgs, config: ModelConfig) -> ScheduleConfig:
    """Limits of a step, from what was asked for, the model and the device."""
    defaults = DEVICE_DEFAULTS["cpu" if jax.default_backend() == "cpu" else "gpu"]
    max_model_len = args.max_model_len or config.max_position
    if max_model_len > config.max_position:
        raise ConfigError(
            f"max_model_len={max_model_len} is beyond the {config.max_position} positions that "
            "this model was made for. Lower it."
        )
    if max_model_len < 2:
        raise ConfigError("max_model_len=1: expected at least 2, a prompt token and an answer.")
    rows = args.max_num_seqs or defaults.max_num_seqs
    return ScheduleConfig(
        max_num_seqs=rows,
        max_num_batched_tokens=_batched_tokens(args, rows, max_model_len, defaults),
        max_model_len=max_model_len,
        policy=args.scheduling_policy,
        enable_chunked_prefill=args.enable_chunked_prefill,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
        prefill_tile=PREFILL_TILE,
    )


def _batched_tokens(
    args: EngineArgs, rows: int, max_model_len: int, defaults: DeviceDefaults
) -> int:
    """The token budget of a step. Room for one tile beside all decode rows, so that a full engine
    still takes prompts in."""
    rounded_length = -(-max_model_len // PREFILL_TILE) * PREFILL_TILE
    least = rows + PREFILL_TILE
    if args.max_num_batched_tokens:
        given = args.max_num_batched_tokens
        if not args.enable_chunked_prefill and given < rounded_length:
            raise ConfigError(
                f"max_num_batched_tokens={given} with enable_chunked_prefill=False: a prompt of up "
                f"to {max_model_len} tokens would never fit. Raise it to {rounded_length}, lower "
                "max_model_len, or enable chunked prefill."
            )
        if given < least:
            logger.info("max_num_batched_tokens=%d is raised to %d: %d rows and one tile of %d",
                        given, least, rows, PREFILL_TILE)  # fmt: skip
        return max(given, least)
    if not args.enable_chunked_prefill:
        return max(rounded_length, least)
    return max(min(defaults.max_num_batched_tokens, rounded_length), least)


def _runner_config(
    args: EngineArgs, config: ModelConfig, schedule: ScheduleConfig, compilation: dict[str, Any]
) -> RunnerConfig:
    shapes = StepShapes(
        groups=config.groups,
        block_size=args.block_size or BLOCK_SIZE,
        prefill_tile=schedule.prefill_tile,
        max_rows=schedule.max_num_seqs,
        max_model_len=schedule.max_model_len,
    )
    # A window moves on when a step has been read, so chunks in flight hold blocks as well.
    in_flight = (OVERLAP_DEPTH + 1) * schedule.max_num_batched_tokens
    needs = [
        blocks_needed(group.spec, schedule.max_model_len, shapes.block_size, in_flight)
        for group in config.groups
    ]
    on_cpu = jax.default_backend() == "cpu"
    most = config.vocab_size if args.max_logprobs < 0 else min(args.max_logprobs, config.vocab_size)
    tiers, late = _tiers(variants(most, args.logprobs_mode), compilation.get("variants"))
    return RunnerConfig(
        shapes=shapes,
        ladders=_ladders(schedule, shapes, compilation),
        tiers=tiers,
        late_tiers=late,
        # XLA's products on the CPU leave their fast path for a bfloat16 cache.
        cache_dtype=jnp.float32 if on_cpu else jnp.dtype(config.dtype),
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        memory_share=args.gpu_memory_utilization,
        demands=tuple((schedule.max_num_seqs * need, need) for need in needs),
        enable_prefix_caching=args.enable_prefix_caching,
        warm_up=not args.enforce_eager,
        strict=args.strict,
    )


def _tiers(
    known: dict[str, Features], wanted: list[str] | None
) -> tuple[tuple[Features, ...], tuple[Features, ...]]:
    """Variants compiled in warm-up, and those compiled when first needed."""
    chosen = list(known) if wanted is None else list(wanted)
    for name in chosen:
        if name not in known:
            raise ConfigError(
                f"compilation_config['variants'] has {name!r}; known: {', '.join(known)}."
                f"{nearest_name(str(name), known)}"
            )
    if not chosen:
        raise ConfigError(
            "compilation_config['variants'] is empty; use enforce_eager=True instead."
        )
    early = tuple(value for name, value in known.items() if name in chosen)
    return early, tuple(value for value in known.values() if value not in early)


def _ladders(schedule: ScheduleConfig, shapes: StepShapes, compilation: dict[str, Any]) -> Ladders:
    ladders = default_ladders(
        schedule.max_num_seqs,
        schedule.max_num_batched_tokens,
        schedule.max_model_len,
        shapes.block_size,
        shapes.prefill_tile,
    )
    given = {
        name: _rungs(name, compilation[name])
        for name in ("decode_rows", "prefill_tokens", "pages")
        if name in compilation
    }
    ladders = replace(ladders, **given)
    tokens = schedule.max_num_batched_tokens // shapes.prefill_tile * shapes.prefill_tile
    enough = {"decode_rows": schedule.max_num_seqs, "prefill_tokens": tokens,
              "pages": shapes.max_pages}  # fmt: skip
    for name, least in enough.items():
        last = getattr(ladders, name)[-1]
        if last < least:
            raise ConfigError(
                f"compilation_config[{name!r}] ends at {last}, but a step may need {least}."
            )
    for tokens in ladders.prefill_tokens:
        if tokens % shapes.prefill_tile:
            raise ConfigError(
                f"compilation_config['prefill_tokens'] has {tokens}; expected multiples of "
                f"{shapes.prefill_tile}."
            )
    return ladders


def _rungs(name: str, given: Any) -> tuple[int, ...]:
    if not isinstance(given, (list, tuple)) or any(type(item) is not int for item in given):
        raise ConfigError(f"compilation_config[{name!r}]={given!r}: expected a list of integers.")
    return tuple(given)


def _load(args: EngineArgs, folder: Path, config: ModelConfig, bar: Callable[..., Any]) -> Decoder:
    place = Placement(one_device_mesh())
    if args.load_format == "dummy":
        return dummy_model(config, args.dtype, args.seed, place=place)
    if args.load_format not in ("auto", "safetensors"):
        raise UnsupportedFeature(f"load_format={args.load_format!r} is not built yet.")

    def progress(label: str, total: int) -> Any:
        return bar(total=total, desc=label, unit="B", unit_scale=True)

    return load_model(folder, dtype=args.dtype, place=place, progress=progress)


def _tokenizer(args: EngineArgs, folder: Path) -> Tokenizer | None:
    if args.skip_tokenizer_init:
        return None
    if args.tokenizer is None:
        return load_tokenizer(folder)
    if isinstance(args.tokenizer, (str, Path)):
        return load_tokenizer(resolve_model(args.tokenizer))
    return wrap_tokenizer(args.tokenizer)


def _eos_ids(
    config: ModelConfig, generation: Mapping[str, Any], tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """Every id that ends an answer: of the tokenizer, the model and its generation settings."""
    ids = {*config.eos_token_ids, *generation.get("eos_token_id", ())}
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return tuple(sorted(i for i in ids if 0 <= i < config.vocab_size))


def _default_params(generation: Mapping[str, Any]) -> dict[str, Any]:
    """SamplingParams fields that the model's generation_config.json sets."""
    names = {"max_new_tokens": "max_tokens"}
    fields = set(SamplingParams.__dataclass_fields__)
    named = {names.get(key, key): value for key, value in generation.items()}
    return {key: value for key, value in named.items() if key in fields}


def _log_capacity(cache: CacheConfig, schedule: ScheduleConfig) -> None:
    tokens = (min(cache.num_blocks) - 1) * cache.block_size
    device = jax.default_backend().upper()
    logger.info("%s KV cache size: %s tokens", device, f"{tokens:,}")
    logger.info(
        "Maximum concurrency for %s tokens per request: %.2fx",
        f"{schedule.max_model_len:,}", tokens / schedule.max_model_len,
    )  # fmt: skip
