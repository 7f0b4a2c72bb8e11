"""Options of the Ray executor, and the worker count and size that follow from them.

In: the options as given and the cluster's nodes. Out: how many workers of what size. No Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from jengine.errors import ConfigError, nearest_name


@dataclass(frozen=True)
class RayOptions:
    """Options under `executor_options` (executor='ray') and `data_parallel_options`."""

    # The cluster's address. None: the cluster already joined, RAY_ADDRESS, or a new local one.
    address: str | None = None
    # Worker processes. None: one per host needed.
    workers: int | None = None
    # Per worker. None: its share of tensor_parallel_size, or all GPUs of its host.
    gpus: int | None = None
    cpus: float = 1.0
    # Environment variables of the workers.
    environment: Mapping[str, str] = field(default_factory=dict)
    # Deadline in seconds for every worker to load and compile.
    start: float = 1800.0
    # Seconds that workers have to end before they are killed.
    stop: float = 10.0

    @classmethod
    def checked(cls, given: Any, setting: str = "executor_options") -> RayOptions:
        """Parse the user's mapping; `setting` is its name in errors."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"{setting}={given!r}: expected a dict of options for Ray.")
        known = [item.name for item in fields(cls)]
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    f"{setting} has no key {name!r} for Ray. Known: {', '.join(known)}."
                    f"{nearest_name(str(name), known)}"
                )
            if not FITS[name](value):
                raise ConfigError(f"{setting}[{name!r}]={value!r}: expected {WANTED[name]}.")
        return cls(**given)

    def shape(self, nodes: Sequence[int], devices: int | None) -> tuple[int, int]:
        """Return (workers, GPUs per worker) for this many devices on nodes with these GPUs."""
        most = max(nodes, default=0)
        if most == 0:
            return self.workers or len(nodes), self.gpus or 0
        each = self.gpus or most
        workers = self.workers or (
            -(-devices // each) if devices else sum(n >= each for n in nodes)
        )
        if self.gpus is None and devices:
            if devices % workers:
                raise ConfigError(
                    f"{devices} devices on {workers} hosts of {most} GPUs: expected the same "
                    "number on each. Give executor_options={'workers': ..., 'gpus': ...}."
                )
            each = devices // workers
        return workers, each


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_environment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(text, str) for key, text in value.items()
    )


FITS = {
    "address": lambda value: value is None or isinstance(value, str),
    "workers": lambda value: value is None or _is_count(value),
    "gpus": lambda value: value is None or _is_count(value),
    "cpus": _is_amount,
    "environment": _is_environment,
    "start": _is_amount,
    "stop": _is_amount,
}
WANTED = {
    "address": "an address such as 'auto' or '10.0.0.1:6379'",
    "workers": "a number of processes",
    "gpus": "a number of GPUs",
    "cpus": "a number above 0",
    "environment": "a dict of texts",
    "start": "a number of seconds",
    "stop": "a number of seconds",
}
