"""Builds the exporter of an engine's metrics, from its session's statistics and its core's
counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from jengine.assembly.engine import Engine
from jengine.assembly.settings.values import one_of
from jengine.counts import Counts
from jengine.hub.names import shown_name
from jengine.metrics.cost import CostModel
from jengine.metrics.exporter import PREFIXES, AdapterUse, EngineFacts, Exporter

# Settings that are labels of cache_config_info.
CACHE_SETTINGS = ("gpu_memory_utilization", "kv_cache_memory_bytes", "num_gpu_blocks_override")


def exporter_of(
    engine: Engine,
    model_name: str | None = None,
    prefix: str = "jengine",
    counts: Callable[[], Counts] | None = None,
) -> Exporter:
    """An exporter of an engine's metrics.

    `prefix` is "jengine", or "vllm" for dashboards made for vLLM. `counts` returns the core's
    counts; by default the last reported ones, without waiting.
    """
    one_of("metrics prefix", prefix, PREFIXES)
    facts = EngineFacts(
        model_name=model_name or served_name(engine),
        cache=cache_facts(engine),
        cost=None if engine.model is None else cost_model(engine),
    )
    newest = counts or (lambda: last_counts(engine))
    adapters = (lambda: adapter_use(engine)) if engine.args.enable_lora else None
    return Exporter(engine.session.stats, newest, facts, prefix, adapters)


def adapter_use(engine: Engine) -> AdapterUse:
    """Adapters of the open requests."""
    running: dict[str, None] = {}
    waiting: dict[str, None] = {}
    for answer in engine.session.open_answers:
        if answer.lora_request is not None:
            begun = answer.metrics.time_to_first_token is not None
            (running if begun else waiting)[answer.lora_request.lora_name] = None
    return AdapterUse(engine.args.max_loras, sorted(running), sorted(waiting))


def last_counts(engine: Engine) -> Counts:
    """The core's last counts, with ages advanced by the time since they were sent."""
    state = engine.client.state()
    engine.session.stats.dropped_frames = state.dropped_frames
    return state.counts.later(state.age)


def served_name(engine: Engine) -> str:
    """Default `served_model_name`: the last part of the model's folder or name."""
    return Path(shown_name(engine.folder or engine.args.model)).name


def cost_model(engine: Engine) -> CostModel:
    """Cost model for the utilisation metrics."""
    return CostModel(engine.model, devices_of(engine), engine.args.cache_codes is not None)


def devices_of(engine: Engine) -> int:
    """Number of devices of one replica."""
    if engine.devices is not None:
        return engine.placement.replicas[0].mesh.size
    return engine.args.devices_per_replica


def cache_facts(engine: Engine) -> dict[str, str]:
    """Settings of the KV cache, as labels."""
    cache = engine.cache
    own = {
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.fewest_blocks,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "cache_dtype": engine.args.kv_cache_dtype,
    }
    given = {name: vars(engine.args)[name] for name in CACHE_SETTINGS}
    return {name: str(value) for name, value in {**own, **given}.items()}
