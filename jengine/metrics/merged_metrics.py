"""Merges the metrics of several API processes over the same cores, for Prometheus.

In: each process's families as plain data. Out: families with counters and histograms summed.
Families derived from the cores' counts are equal in every process, so they are taken from one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from jengine.metrics import catalog

# Catalog counters that each front end counts itself.
COUNTED_BY_FRONTS = frozenset({"request_success"})
OF_CORES = frozenset(
    metric.name
    for metric in (
        *catalog.GAUGES,
        *catalog.COUNTERS,
        *catalog.STEP_HISTOGRAMS,
        *catalog.BLOCK_HISTOGRAMS.values(),
    )
    if metric.name not in COUNTED_BY_FRONTS
) | {"cache_config_info", "dropped_ipc_frames"}
# Gauges that add up over processes; others are taken from the process asked.
ADDED = frozenset(
    {"process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds"}
)
CREATED = "_created"  # creation time of a series: the earliest is kept


class MetricSample(NamedTuple):
    """One Prometheus sample: name, labels, value."""

    name: str
    labels: dict[str, str]
    value: float

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Identity of the series, for merging across processes."""
        return self.name, tuple(sorted(self.labels.items()))


class MetricFamily(msgspec.Struct, frozen=True):
    name: str
    kind: str
    text: str
    samples: list[MetricSample]

    @property
    def is_of_cores(self) -> bool:
        """Whether it describes cores, so that every API process reports the same values."""
        return self.name.rpartition(":")[2] in OF_CORES

    @property
    def adds_up(self) -> bool:
        """Whether values of several processes are summed."""
        return self.kind in ("counter", "histogram") or self.name in ADDED


def families_of(registry: CollectorRegistry) -> list[MetricFamily]:
    return [
        MetricFamily(
            one.name, one.type, one.documentation, [MetricSample(*line[:3]) for line in one.samples]
        )
        for one in registry.collect()
    ]


def merged(
    own: Sequence[MetricFamily], others: Iterable[Sequence[MetricFamily]]
) -> CollectorRegistry:
    """Merge the families of all API processes; `own` supplies values that are equal in all."""
    lines = {one.name: {line.key: line for line in one.samples} for one in own}
    known = {one.name: one for one in own}
    for families in others:
        for family in families:
            if family.name not in known:
                known[family.name] = family
                lines[family.name] = {line.key: line for line in family.samples}
            elif family.adds_up and not family.is_of_cores:
                into = lines[family.name]
                for line in family.samples:
                    into[line.key] = _both(into.get(line.key), line)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(
        Collected(
            [msgspec.structs.replace(one, samples=[*lines[name].values()])
             for name, one in known.items()]
        )
    )  # fmt: skip
    return registry


def _both(one: MetricSample | None, other: MetricSample) -> MetricSample:
    if one is None:
        return other
    if other.name.endswith(CREATED):
        return one._replace(value=min(one.value, other.value))
    return one._replace(value=one.value + other.value)


class Collected(Collector):
    """A prometheus collector over precomputed families."""

    def __init__(self, families: Sequence[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for family in self._families:
            metric = Metric(family.name, family.text, family.kind)
            for line in family.samples:
                metric.add_sample(line.name, line.labels, line.value)
            yield metric
