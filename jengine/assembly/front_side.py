"""Joins a model's texts and limits with the client of its core: an Engine. No jax.

In: settings, what is known of the model, a client. Out: an Engine, wherever its steps run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jengine.assembly.args import EngineArgs
from jengine.assembly.engine import DeviceSide, Engine
from jengine.assembly.model_facts import ModelSource
from jengine.assembly.processors import numbering
from jengine.assembly.structured_settings import structured_outputs_defaults
from jengine.config import CacheConfig, ScheduleConfig
from jengine.engine.client import EngineClient, InProcessClient
from jengine.engine.input_processor import InputProcessor
from jengine.engine.limits import Limits
from jengine.engine.session import Session
from jengine.grammar.compiler import GrammarCompiler
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
    # A core in another process reads the tokenizer from files, so it must be the one used here.
    shared = isinstance(client, InProcessClient) or isinstance(
        args.tokenizer, (str, Path, type(None))
    )
    grammars = devices.grammars if devices else GrammarCompiler() if shared else None
    structured = structured_outputs_defaults(args.reasoning_parser, args.structured_outputs_config)
    inputs = InputProcessor(
        limits, source.tokenizer, args.seed or 0, grammars, structured, numbering(args, devices)
    )
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
