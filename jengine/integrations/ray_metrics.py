"""An engine's metrics as Ray's, which reach Prometheus by the metrics port of the actor's node.

In: an engine. Out: gauges of its numbers, as counters and buckets are whole numbers already.
"""

from __future__ import annotations

from ray.util.metrics import Gauge

from jengine.api.metrics import exporter_of
from jengine.assembly.engine import Engine


class RayMetrics:
    def __init__(self, engine: Engine) -> None:
        self._exporter = exporter_of(engine)
        self._gauges: dict[str, Gauge] = {}

    def publish(self) -> None:
        """Hand the numbers as they are now to Ray."""
        for family in self._exporter.collect():
            for sample in family.samples:
                name = sample.name.replace(":", "_")
                if name not in self._gauges:
                    self._gauges[name] = Gauge(name, family.documentation, tuple(sample.labels))
                self._gauges[name].set(sample.value, tags=dict(sample.labels))
