"""What scripts written for vLLM take from its utilities and configs, in our terms. No jax.

Reached by vLLM's import paths (vllm_names.PATHS), not by names of jengine's own.
"""

from __future__ import annotations

import gc
import logging
import uuid
from typing import Any


class SettingsGroup(dict[str, Any]):
    """The keys of a setting that takes a dict, given as keywords and readable as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(f"{type(self).__name__} was given no {name!r}; it has {sorted(self)}.")


class CompilationConfig(SettingsGroup):
    """vLLM's class of the setting `compilation_config`, as a dict."""


class KVEventsConfig(SettingsGroup):
    """vLLM's class of the setting `kv_events_config`, as a dict."""


class KVTransferConfig(SettingsGroup):
    """vLLM's class of the setting `kv_transfer_config`, as a dict."""


class ProfilerConfig(SettingsGroup):
    """vLLM's class of the setting `profiler_config`, as a dict."""


class StructuredOutputsConfig(SettingsGroup):
    """vLLM's class of the setting `structured_outputs_config`, as a dict."""


def random_uuid() -> str:
    """A request id that no other request has."""
    return uuid.uuid4().hex


def init_logger(name: str) -> logging.Logger:
    """The logger of this name."""
    return logging.getLogger(name)


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Free the memory of engines that nothing refers to any more; `shutdown_ray` leaves Ray too."""
    gc.collect()
    if shutdown_ray:
        import ray

        ray.shutdown()
