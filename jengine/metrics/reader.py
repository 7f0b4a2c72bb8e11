"""Metrics as Python objects, for programs that hold an engine: `llm.get_metrics()`.

In: an exporter. Out: a Counter, Gauge, Vector or Histogram per series, with vLLM's fields.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import Metric as Family

from jengine.metrics.exporter import Exporter


@dataclass
class Metric:
    """One series: name and label values."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A cumulative count."""

    value: int


@dataclass
class Vector(Metric):
    """A list of counters, such as accepted draft tokens by position."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A value that goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """Observations by buckets: upper bound -> observations that do not exceed it."""

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(exporter: Exporter) -> list[Metric]:
    """Current values of all metrics."""
    found: list[Metric] = []
    for family in exporter.collect():
        if family.type == "histogram":
            found += histograms(family)
        else:
            found += numbers(family)
    return found


def numbers(family: Family) -> list[Metric]:
    """The series of a counter or gauge family."""
    if family.type == "counter":
        return [Counter(family.name, one.labels, int(one.value)) for one in family.samples]
    return [Gauge(family.name, one.labels, one.value) for one in family.samples]


def histograms(family: Family) -> list[Metric]:
    """The series of a histogram family, each gathered from its bucket, count and sum samples."""
    series: dict[tuple[tuple[str, str], ...], Histogram] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        one = series.setdefault(
            tuple(sorted(labels.items())), Histogram(family.name, labels, 0, 0.0, {})
        )
        if sample.name.endswith("_bucket"):
            one.buckets[sample.labels["le"]] = int(sample.value)
        elif sample.name.endswith("_count"):
            one.count = int(sample.value)
        elif sample.name.endswith("_sum"):
            one.sum = sample.value
    return list(series.values())
