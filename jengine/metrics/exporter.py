"""Prometheus exporter: metric families of one engine, as one front end sees it.

In: the front end's statistics, and the latest counts of its cores. Out: families, for a server's
registry or for `reader`. Values are read on scrape, not copied per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from jengine.counts import Counts, Histogram
from jengine.metrics import catalog
from jengine.metrics.cost import CostModel, StepCost
from jengine.metrics.front_stats import FrontStats

PREFIXES = ("jengine", "vllm")
LABELS = ("model_name", "engine")


@dataclass(frozen=True)
class EngineFacts:
    """Constants of an engine: labels and info metrics."""

    model_name: str
    cache: Mapping[str, str] = field(default_factory=dict)  # settings of the KV cache
    cost: CostModel | None = None


@dataclass(frozen=True)
class AdapterUse:
    """Names of the LoRA adapters of running and of waiting requests."""

    most: int  # per step
    running: Sequence[str]
    waiting: Sequence[str]


class Exporter:
    """A prometheus-client collector for one engine, as seen by one front end."""

    def __init__(
        self,
        stats: FrontStats,
        counts: Callable[[], Counts],
        facts: EngineFacts,
        prefix: str = "jengine",
        adapters: Callable[[], AdapterUse] | None = None,
    ) -> None:
        self.prefix = prefix
        self._adapters = adapters  # None: LoRA is off
        self._stats = stats
        self._counts = counts
        self._facts = facts

    def collect(self) -> Iterator[Metric]:
        """Yield the current values of all metric families; called by the registry."""
        each = self._counts().each
        values = [core_values(counts, self._facts.cost) for counts in each]
        for index, one in enumerate(values):
            one["request_success"] = dict(self._stats.of(index).ended)
        for metric in (*catalog.GAUGES, *catalog.COUNTERS):
            yield self._numbers(metric, [one[metric.name] for one in values])
        for metric in catalog.REQUEST_HISTOGRAMS:
            found = [self._stats.of(index).histograms[metric.name] for index in range(len(each))]
            yield self._histogram(metric, [{"": one} for one in found])
        step_tokens, step_seconds = catalog.STEP_HISTOGRAMS
        yield self._histogram(step_tokens, [{"": counts.step_tokens} for counts in each])
        yield self._histogram(step_seconds, [counts.step_seconds for counts in each])
        yield from self._of_blocks(each)
        yield from self._of_the_front()
        if self._adapters is not None:
            yield self._adapter_info(self._adapters())
        yield self._cache_config(len(each))

    def _numbers(self, metric: catalog.CatalogMetric, values: Sequence[Values]) -> Metric:
        kind = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
        family = kind(self._name(metric.name), metric.text, labels=labels_of(metric))
        for engine, by_label in enumerate(values):
            for label, number in by_label.items():
                family.add_metric(self._labels(engine, label), number)
        return family

    def _histogram(
        self, metric: catalog.CatalogMetric, values: Sequence[Mapping[str, Histogram]]
    ) -> Metric:
        family = HistogramMetricFamily(
            self._name(metric.name), metric.text, labels=labels_of(metric)
        )
        for engine, by_label in enumerate(values):
            for label, histogram in by_label.items():
                labels = self._labels(engine, label)
                family.add_metric(labels, cumulative(histogram), histogram.total)
        return family

    def _of_blocks(self, each: Sequence[Counts]) -> Iterable[Metric]:
        """Histograms of block lifetimes in the cache, if these are sampled."""
        times = [counts.block_times for counts in each]
        if all(one is None for one in times):
            return
        for name, metric in catalog.BLOCK_HISTOGRAMS.items():
            found = [{} if one is None else {"": getattr(one, name)} for one in times]
            yield self._histogram(metric, found)

    def _of_the_front(self) -> Iterable[Metric]:
        """Metrics of the front end itself, without an engine label."""
        stats, model = self._stats, self._facts.model_name
        rejections = CounterMetricFamily(
            self._name("admission_rejections"),
            "Requests refused because of a limit on those that are open, by limit.",
            labels=["model_name", "reason"],
        )
        for reason, number in sorted(stats.rejections.items()):
            rejections.add_metric([model, reason], number)
        ignored = CounterMetricFamily(
            self._name("ignored_request_fields"),
            "Fields of requests that this server does not know.",
            labels=["model_name"],
        )
        ignored.add_metric([model], stats.ignored_fields)
        lanes = self._lanes()
        updates = HistogramMetricFamily(
            self._name("update_params_seconds"),
            "Seconds that replacing the parameters took.",
            labels=["model_name"],
        )
        updates.add_metric([model], cumulative(stats.params_updates), stats.params_updates.total)
        dropped = CounterMetricFamily(
            self._name("dropped_ipc_frames"),
            "Messages to the engine's process that it could not read.",
            labels=["model_name"],
        )
        dropped.add_metric([model], stats.dropped_frames)
        return rejections, ignored, dropped, updates, *lanes

    def _lanes(self) -> tuple[Metric, ...]:
        """Metrics of the server's rendering and tokenizing pools, if there is a server."""
        busy = GaugeMetricFamily(
            self._name("rendering_busy_workers"),
            "Threads and processes that render and tokenize requests now, by kind of request.",
            labels=["model_name", "lane"],
        )
        refused = CounterMetricFamily(
            self._name("rendering_refused"),
            "Requests that waited to be rendered and never were, by kind of request.",
            labels=["model_name", "lane"],
        )
        given_up = CounterMetricFamily(
            self._name("rendering_given_up"),
            "Requests whose rendering took too long, or whose client left, by kind of request.",
            labels=["model_name", "lane"],
        )
        for lane, counts in self._stats.lanes.items():
            for family, value in zip((busy, refused, given_up), counts, strict=True):
                family.add_metric([self._facts.model_name, lane], value)
        return (busy, refused, given_up) if self._stats.lanes else ()

    def _adapter_info(self, use: AdapterUse) -> Metric:
        family = GaugeMetricFamily(
            self._name("lora_requests_info"),
            "LoRA adapters of open requests, as labels.",
            labels=["max_lora", "waiting_lora_adapters", "running_lora_adapters"],
        )
        labels = [str(use.most), ",".join(use.waiting), ",".join(use.running)]
        family.add_metric(labels, time.time())
        return family

    def _cache_config(self, engines: int) -> Metric:
        facts = self._facts
        family = GaugeMetricFamily(
            self._name("cache_config_info"),
            "Settings of the KV cache, as labels.",
            labels=[*facts.cache, "engine"],
        )
        for engine in range(engines):
            family.add_metric([*facts.cache.values(), str(engine)], 1)
        return family

    def _name(self, name: str) -> str:
        return f"{self.prefix}:{name}"

    def _labels(self, engine: int, label: str) -> list[str]:
        own = [label] if label else []
        return [self._facts.model_name, str(engine), *own]


def labels_of(metric: catalog.CatalogMetric) -> list[str]:
    return [*LABELS, *([metric.label] if metric.label else [])]


def cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    """Each bucket's bound, and how many observations do not exceed it."""
    counts = accumulate(list(histogram.counts))
    names = [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(names, counts, strict=True))


# Label value -> number; "" for metrics without a label of their own.
Values = Mapping[str, float]
NO_COST = StepCost(0.0, 0.0, 0.0)


def plain(number: float) -> Values:
    """The values of a metric without labels of its own."""
    return {"": number}


def waiting_by_reason(counts: Counts) -> Values:
    """Waiting requests by reason; the values sum to `num_requests_waiting`."""
    return {"capacity": counts.waiting - counts.deferred, "deferred": counts.deferred}


def prompt_tokens_by_source(counts: Counts) -> Values:
    """Prompt tokens by source; the values sum to `prompt_tokens`."""
    return {
        "local_compute": counts.prompt_tokens - counts.cached_prompt_tokens,
        "local_cache_hit": counts.cached_prompt_tokens - counts.external_prompt_tokens,
        "external_kv_transfer": counts.external_prompt_tokens,
    }


def accepted_by_position(counts: Counts) -> Values:
    """Accepted draft tokens by position among a row's drafts, from 0."""
    return {str(place): number for place, number in enumerate(counts.drafts.accepted_at)}


def padding_share(counts: Counts) -> float:
    """Share of computed tokens that were padding."""
    programs = counts.programs
    if not programs.computed_tokens:
        return 0.0
    return 1 - programs.useful_tokens / programs.computed_tokens


def sleep_state(counts: Counts) -> Values:
    """One-hot sleep state."""
    states = ("awake", "weights_offloaded", "discard_all")
    return {name: int(counts.sleep_level == level) for level, name in enumerate(states)}


# The image cache is not counted yet.
FROM_COUNTS: dict[str, Callable[[Counts], Values]] = {
    "num_requests_running": lambda counts: plain(counts.running),
    "num_requests_waiting": lambda counts: plain(counts.waiting),
    "num_requests_waiting_by_reason": waiting_by_reason,
    "kv_cache_usage_perc": lambda counts: plain(counts.cache_usage),
    "kv_offload_cpu_cache_usage_perc": lambda counts: plain(counts.copies.usage),
    "engine_sleep_state": sleep_state,
    "last_step_age_seconds": lambda counts: plain(counts.last_step_age),
    "weight_version": lambda counts: plain(counts.weights_version),
    "padding_waste_ratio": lambda counts: plain(padding_share(counts)),
    "prompt_tokens": lambda counts: plain(counts.prompt_tokens),
    "prompt_tokens_by_source": prompt_tokens_by_source,
    "prompt_tokens_cached": lambda counts: plain(counts.cached_prompt_tokens),
    "generation_tokens": lambda counts: plain(counts.generation_tokens),
    "num_preemptions": lambda counts: plain(counts.preemptions),
    "prefix_cache_queries": lambda counts: plain(counts.prefix_queries),
    "prefix_cache_hits": lambda counts: plain(counts.prefix_hits),
    "external_prefix_cache_queries": lambda counts: plain(counts.external_queries),
    "external_prefix_cache_hits": lambda counts: plain(counts.external_hits),
    "kv_offload_load_bytes": lambda counts: plain(counts.copies.loaded_bytes),
    "kv_offload_store_bytes": lambda counts: plain(counts.copies.stored_bytes),
    "kv_connector_fetched_blocks": lambda counts: plain(counts.copies.fetched),
    "kv_connector_failed_blocks": lambda counts: plain(counts.copies.failed),
    "mm_cache_queries": lambda _: plain(0),
    "mm_cache_hits": lambda _: plain(0),
    "corrupted_requests": lambda counts: plain(counts.corrupted),
    "spec_decode_num_drafts": lambda counts: plain(counts.drafts.drafts),
    "spec_decode_num_draft_tokens": lambda counts: plain(counts.drafts.drafted),
    "spec_decode_num_accepted_tokens": lambda counts: plain(counts.drafts.accepted),
    "spec_decode_num_accepted_tokens_per_pos": accepted_by_position,
    "compile": lambda counts: dict(counts.programs.compiles),
    "compile_seconds": lambda counts: plain(counts.programs.seconds),
    "unexpected_recompiles": lambda counts: plain(counts.programs.unexpected),
    "step_compile_wait_seconds": lambda counts: plain(counts.programs.awaited_seconds),
    "late_compiles": lambda counts: dict(counts.programs.late),
}
FROM_COST: dict[str, Callable[[StepCost], float]] = {
    "estimated_flops_per_gpu": lambda cost: cost.operations,
    "estimated_read_bytes_per_gpu": lambda cost: cost.read,
    "estimated_write_bytes_per_gpu": lambda cost: cost.written,
}


def core_values(counts: Counts, cost: CostModel | None) -> dict[str, Values]:
    """Values of all metrics that derive from a core's counts, by name."""
    spent = NO_COST if cost is None else cost.of(counts)
    values = {name: of(counts) for name, of in FROM_COUNTS.items()}
    return values | {name: plain(of(spent)) for name, of in FROM_COST.items()}
