"""Plugins: functions of other packages, called once in every process of an engine. No jax.

A package declares them as entry points of the group `jengine.plugins`. They may register models
(`jengine.register_model`) and calls for `collective_rpc` (`jengine.executor.calls.register_call`).
"""

from __future__ import annotations

import threading
from importlib.metadata import EntryPoint, entry_points

from jengine.errors import ConfigError

GROUP = "jengine.plugins"
_loading = threading.Lock()
_loaded: list[EntryPoint] = []


def installed_plugins() -> list[EntryPoint]:
    """Plugins of all installed packages, by name."""
    return sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value))


def load_plugins() -> None:
    """Call every plugin that this process has not called yet."""
    with _loading:
        for plugin in installed_plugins():
            if plugin not in _loaded:
                _call(plugin)
                _loaded.append(plugin)


def _call(plugin: EntryPoint) -> None:
    try:
        plugin.load()()
    except Exception as error:
        package = plugin.dist.name if plugin.dist else "an unknown package"
        raise ConfigError(
            f"the plugin {plugin.name!r} of {package} ({plugin.value}) failed: "
            f"{type(error).__name__}: {error}. Repair it, or uninstall {package}."
        ) from error
