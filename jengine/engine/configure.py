"""From EngineArgs to a running session: reads the folder and builds every room.

Each room gets its own settings only. Sizes are decided in sizes.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jengine.config import CacheConfig, ModelConfig, ScheduleConfig
from jengine.engine.args import EngineArgs
from jengine.engine.core import EngineCore
from jengine.engine.intake import Intake, Limits
from jengine.engine.session import Session
from jengine.engine.sizes import OVERLAP_DEPTH, runner_config, schedule_config
from jengine.engine.stats_log import StatsLog
from jengine.errors import UnsupportedFeature
from jengine.executor.local import LocalExecutor
from jengine.kvcache.manager import CacheManager
from jengine.models.decoder import Decoder
from jengine.runner.build import build_runner
from jengine.runner.compile_cache import enable_compile_cache
from jengine.runner.runner import Runner
from jengine.sampling_params import SamplingParams
from jengine.scheduler.scheduler import Scheduler
from jengine.text.tokenizer import Tokenizer, load_tokenizer, wrap_tokenizer
from jengine.weights.dummy import dummy_model
from jengine.weights.folder import read_generation_config, read_model_config, resolve_model
from jengine.weights.safetensors_io import load_model
from sharding.placement import Placement, one_device_mesh

logger = logging.getLogger(__name__)


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
    runner, cache = build_runner(
        model, config, runner_config(args, config, schedule, compilation), bar
    )
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
