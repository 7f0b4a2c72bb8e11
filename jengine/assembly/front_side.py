"""Joins a model's texts and limits with the client of its core: an Engine. No jax.

In: settings, what is known of the model, a client. Out: an Engine, wherever its steps run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.assembly.args import EngineArgs
from jengine.assembly.engine import DeviceSide, Engine
from jengine.assembly.model_facts import ModelSource
from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.client import EngineClient
from jengine.engine.input_processor import InputProcessor
from jengine.engine.limits import Limits
from jengine.engine.session import Session
from jengine.metrics.stats_log import StatsLog
from jengine.metrics.tracing import Tracer
from jengine.sampling_params import SamplingParams


def engine_of(
    args: EngineArgs,
    source: ModelSource,
    client: EngineClient,
    schedule: ScheduleConfig,
    cache: CacheConfig,
    platform: str,
    devices: DeviceSide | None = None,
) -> Engine:
    """The engine: a session in front of the client."""
    limits = Limits(
        source.config.vocab_size,
        schedule.max_model_len,
        args.max_logprobs,
        source.eos_token_ids,
        source.stop_token_ids,
    )
    log = None
    if not args.disable_log_stats:
        log = StatsLog(lambda: client.state().counts, platform)
    tracer = None
    if args.otlp_traces_endpoint is not None:
        tracer = Tracer.to(args.otlp_traces_endpoint, str(args.model))
    inputs = InputProcessor(limits, source.tokenizer, args.seed or 0)
    return Engine(
        session=Session(inputs, client, log, tracer),
        client=client,
        args=args,
        folder=source.folder,
        model=source.config,
        schedule=schedule,
        cache=cache,
        tokenizer=source.tokenizer,
        default_params=_default_params(source.generation),
        devices=devices,
        platform=platform,
    )


def _default_params(generation: Mapping[str, Any]) -> dict[str, Any]:
    """SamplingParams fields that the model's generation_config.json sets."""
    names = {"max_new_tokens": "max_tokens"}
    fields = set(SamplingParams.__dataclass_fields__)
    named = {names.get(key, key): value for key, value in generation.items()}
    return {key: value for key, value in named.items() if key in fields}
