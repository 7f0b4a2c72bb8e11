"""Samples a server's memory and metrics, and scans its log for forbidden lines.

In: a server. Out: samples over time, the slope of its memory, forbidden lines. Faults that are
injected explain errors in the log; nothing explains a forgotten exception.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from jengine.bench.marathon.exchange import Manner, exchange
from jengine.bench.marathon.server import ServerProcess

QUICK = Manner(patience=5.0)
GAUGE = re.compile(r"^\w+:(\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)
# Never, whatever is injected: they show a mistake in our own code.
NEVER = re.compile(
    r"never retrieved|never awaited|AssertionError|Segmentation fault|MemoryError"
    r"|Task was destroyed|Exception ignored|leaked"
)
# Not while nothing is injected.
CALM = re.compile(r"\b(ERROR|CRITICAL)\b|Traceback \(most recent call last\)")


@dataclass(frozen=True)
class WatchSample:
    """One sample of memory and metrics."""

    at: float  # seconds since the beginning
    resident_mb: float
    usage: float | None  # of the KV cache, 0 to 1
    running: float | None
    waiting: float | None


async def gauges(port: int) -> dict[str, float]:
    """Each metric summed over engines; empty if the server does not respond."""
    reply = await exchange(port, "GET", "/metrics", manner=QUICK)
    found: dict[str, float] = {}
    if reply.status == 200:
        for name, value in GAUGE.findall(reply.body):
            found[name] = found.get(name, 0.0) + float(value)
    return found


class Watch:
    """Samples a server every `pause` seconds."""

    def __init__(self, server: ServerProcess, is_disturbed: Callable[[], bool]) -> None:
        self.server = server
        self._is_disturbed = is_disturbed
        self.samples: list[WatchSample] = []
        self.forbidden: list[str] = []
        self._began = time.monotonic()
        self._read = 0  # characters of the log

    async def watch(self, pause: float) -> None:
        """Sample and scan until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(pause)

    async def look(self) -> None:
        """Take one sample, and scan the log written since the last."""
        disturbed = self._is_disturbed()
        found = await gauges(self.server.port) if self.server.is_running else {}
        self.samples.append(
            WatchSample(
                at=round(time.monotonic() - self._began, 2),
                resident_mb=round(self.server.resident_bytes() / 2**20, 1),
                usage=found.get("kv_cache_usage_perc"),
                running=found.get("num_requests_running"),
                waiting=found.get("num_requests_waiting"),
            )
        )
        self.scan(disturbed=disturbed or self._is_disturbed())

    def scan(self, *, disturbed: bool) -> None:
        """Scan new log lines."""
        text = self.server.log_text()
        new, self._read = text[self._read :], len(text)
        for line in new.splitlines():
            if NEVER.search(line) or (not disturbed and CALM.search(line)):
                self.forbidden.append(line[:300])

    def memory_slope(self) -> float | None:
        """Memory growth in MiB per minute over the second half; None with too few samples."""
        half = [one for one in self.samples if one.at > self.samples[-1].at / 2]
        if len(half) < 4 or half[-1].at - half[0].at < 1:
            return None
        minutes = [one.at / 60 for one in half]
        slope = np.polyfit(minutes, [one.resident_mb for one in half], 1)[0]
        return round(float(slope), 2)

    def usage_growth(self) -> float | None:
        """Increase of KV cache usage from the middle to the last third, in percentage points."""
        seen = [one.usage for one in self.samples if one.usage is not None]
        third = len(seen) // 3
        if not third:
            return None
        return round(100 * float(np.mean(seen[-third:]) - np.mean(seen[third : 2 * third])), 1)
