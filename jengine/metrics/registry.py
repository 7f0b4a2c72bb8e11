"""A server's Prometheus registry and its text format.

In: collectors. Out: text. Every registry also has the metrics of this process: memory, CPU time,
open files, garbage collections.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def process_registry() -> CollectorRegistry:
    """A registry with the metrics of this process, apart from Prometheus' global one."""
    registry = CollectorRegistry(auto_describe=False)
    for kind in (ProcessCollector, PlatformCollector, GCCollector):
        kind(registry=registry)
    return registry


def text_of(registry: CollectorRegistry) -> bytes:
    """All metrics in Prometheus' text format."""
    return generate_latest(registry)
