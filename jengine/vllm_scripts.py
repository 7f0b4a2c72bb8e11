"""Utilities and config classes of vLLM that its scripts import. No jax.

Reached only by vLLM's import paths (vllm_names.PATHS).
"""

from __future__ import annotations

import gc
import logging
import uuid
from typing import Any


class SettingsGroup(dict[str, Any]):
    """A dict-valued setting as a class: keys are keywords and attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__} was given no {name!r}; it has {sorted(self)}.")


class CompilationConfig(SettingsGroup):
    """vLLM's class for `compilation_config`."""


class KVEventsConfig(SettingsGroup):
    """vLLM's class for `kv_events_config`."""


class KVTransferConfig(SettingsGroup):
    """vLLM's class for `kv_transfer_config`."""


class ProfilerConfig(SettingsGroup):
    """vLLM's class for `profiler_config`."""


class StructuredOutputsConfig(SettingsGroup):
    """vLLM's class for `structured_outputs_config`."""


def random_uuid() -> str:
    """A unique request id."""
    return uuid.uuid4().hex


def init_logger(name: str) -> logging.Logger:
    return logging.getLogger(name)


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of unreferenced engines; `shutdown_ray` also disconnects from Ray."""
    gc.collect()
    if shutdown_ray:
        import ray

        ray.shutdown()
