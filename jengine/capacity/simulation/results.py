"""The results of a simulation: what groups of replicas did, added up, as figures.

In: Histories and Work. Out: a dict for JSON, in vLLM's names where it has them. Latencies are in
milliseconds. Must not know how they are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from jengine.capacity.simulation.history import COLUMNS, Gaps, History
from jengine.capacity.simulation.replica import Replica
from jengine.capacity.simulation.replica_pool import ReplicaPool
from jengine.errors import ConfigError

PERCENTILES = (50, 90, 95, 99, 99.9)
CURVE = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
OBJECTIVES = ("ttft", "tpot", "e2el")
SLICES = 24  # of time, in charts
COUNTS = ("refused", "unanswered", "failures", "rerun", "moved_bytes", "fetched_bytes")


class ReplicaWork(msgspec.Struct, frozen=True):
    """Counters of one replica."""

    pool: str
    devices: int
    steps: int
    busy: float
    rows: float
    prefilled: int
    decoded: int
    preemptions: int
    cache_use: float
    absent: float


class GroupResult(msgspec.Struct, frozen=True):
    """Results of one group, its arrays as bytes for the message between processes."""

    columns: dict[str, bytes]
    gaps: bytes
    counts: dict[str, float]
    replicas: list[ReplicaWork]


def group_result(
    history: History, sites: Sequence[tuple[ReplicaPool, Replica]] = ()
) -> GroupResult:
    """Collect the results of a finished simulation. Replicas with measured step times have no work
    counters."""
    history.gaps.flush()
    replicas = [
        ReplicaWork(pool=pool.name, devices=one.kind.devices, **vars(one.work))
        for pool, one in sites
    ]
    return GroupResult(
        {name: array.tobytes() for name, array in history.columns().items()},
        history.gaps.counts.tobytes(),
        {name: getattr(history, name) for name in COUNTS},
        replicas,
    )


def figures(
    groups: Sequence[GroupResult], objectives: Mapping[str, float], price: float | None
) -> dict[str, Any]:
    """All figures. `objectives` are milliseconds, `price` is of one device for an hour."""
    table = {
        name: np.concatenate([
            np.frombuffer(one.columns[name], np.float64 if name in COLUMNS[:3] else np.int64)
            for one in groups
        ])
        for name in COLUMNS
    }  # fmt: skip
    gaps = Gaps(np.sum([np.frombuffer(one.gaps, np.int64) for one in groups], axis=0))
    counts = {name: sum(one.counts[name] for one in groups) for name in COUNTS}
    completed = len(table["arrived"])
    if not completed:
        raise ConfigError(
            f"no request was answered: {int(counts['refused'])} were refused as too long for the "
            f"replicas, and {int(counts['unanswered'])} found none that lived."
        )
    seconds = float(table["ended"].max())
    made, read = int(table["answer"].sum()), int(table["prompt"].sum())
    latencies = seconds_of(table)
    good = np.ones(completed, bool)
    for name, most in objectives.items():
        good &= latencies[name] * 1e3 <= most
    replicas = [work for one in groups for work in one.replicas]
    shown = {name: summary(values) for name, values in latencies.items()}
    shown["itl"] = {**{f"p{p:g}": 1e3 * gaps.percentile(p) for p in PERCENTILES}}
    return {
        "seconds": seconds,
        "completed": completed,
        **{name: int(counts[name]) for name in COUNTS},
        "total_input_tokens": read,
        "total_output_tokens": made,
        "request_throughput": completed / seconds,
        "output_throughput": made / seconds,
        "total_token_throughput": (made + read) / seconds,
        "objectives_ms": dict(objectives),
        "request_goodput": float(good.sum()) / seconds,
        "good_share": float(good.mean()),
        "latency_ms": shown,
        "prefix_hit_rate": float(table["cached"].sum() / read),
        "pools": pools_of(replicas, seconds),
        "cost": cost_of(replicas, seconds, made, made + read, price),
        "curves_ms": {
            **{name: curve(values) for name, values in latencies.items()},
            "itl": [1e3 * gaps.percentile(p) for p in CURVE],
        },
        "over_time": over_time(table, seconds),
        "busy": [min(work.busy / seconds, 1.0) for work in replicas],
    }


def seconds_of(table: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Latencies of every request."""
    whole = table["ended"] - table["arrived"]
    first = table["first"] - table["arrived"]
    return {
        "ttft": first,
        "tpot": (whole - first) / np.maximum(table["answer"] - 1, 1),
        "e2el": whole,
    }


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and percentiles, in milliseconds."""
    found = np.percentile(values, PERCENTILES) * 1e3
    return {
        "mean": float(values.mean() * 1e3),
        **{f"p{p:g}": float(one) for p, one in zip(PERCENTILES, found, strict=True)},
    }


def curve(values: np.ndarray) -> list[float]:
    """Percentiles for a chart, in milliseconds."""
    return (np.percentile(values, CURVE) * 1e3).tolist()


def pools_of(replicas: Sequence[ReplicaWork], seconds: float) -> dict[str, dict[str, float]]:
    """Averages of each pool over its replicas and the whole time."""
    found = {}
    for name in dict.fromkeys(work.pool for work in replicas):
        own = [work for work in replicas if work.pool == name]
        busy = sum(work.busy for work in own)
        found[name] = {
            "replicas": len(own),
            "devices": sum(work.devices for work in own),
            "replicas_on_average": len(own) - sum(work.absent for work in own) / seconds,
            "busy_share": busy / seconds / len(own),
            "decode_rows_while_busy": sum(work.rows for work in own) / max(busy, 1e-12),
            "cache_use_while_busy": sum(work.cache_use for work in own) / max(busy, 1e-12),
            "steps": sum(work.steps for work in own),
            "prefilled_tokens": sum(work.prefilled for work in own),
            "preemptions": sum(work.preemptions for work in own),
        }
    return found


def cost_of(
    replicas: Sequence[ReplicaWork], seconds: float, made: int, all_tokens: int, price: float | None
) -> dict[str, float | None]:
    """Device-hours and dollars of a million tokens."""
    hours = sum(work.devices * max(seconds - work.absent, 0) for work in replicas) / 3600
    per_output, per_token = hours / made * 1e6, hours / all_tokens * 1e6
    return {
        "device_hours": hours,
        "device_hours_per_million_output_tokens": per_output,
        "device_hours_per_million_tokens": per_token,
        "dollars_per_device_hour": price,
        "dollars_per_million_output_tokens": None if price is None else price * per_output,
        "dollars_per_million_tokens": None if price is None else price * per_token,
    }


def over_time(table: Mapping[str, np.ndarray], seconds: float) -> dict[str, list[float]]:
    """Slices of time: latencies of the requests that arrived in each, and requests in progress."""
    ends = np.linspace(0, seconds, SLICES + 1)[1:]
    slices = np.minimum((table["arrived"] / seconds * SLICES).astype(int), SLICES - 1)
    first = (table["first"] - table["arrived"]) * 1e3
    found: dict[str, list[float]] = {"until": ends.tolist(), "ttft_p50": [], "ttft_p99": []}
    for index in range(SLICES):
        own = first[slices == index]
        for percent in (50, 99):
            value = float(np.percentile(own, percent)) if own.size else 0.0
            found[f"ttft_p{percent}"].append(value)
    arrived, ended = np.sort(table["arrived"]), np.sort(table["ended"])
    inside = np.searchsorted(arrived, ends, "right") - np.searchsorted(ended, ends, "right")
    made = np.histogram(table["ended"], SLICES, (0, seconds), weights=table["answer"])[0]
    found["in_progress"] = inside.astype(float).tolist()
    found["tokens_a_second"] = (made / (seconds / SLICES)).tolist()
    return found
