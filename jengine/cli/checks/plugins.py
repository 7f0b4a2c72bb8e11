"""Doctor: installed plugins (entry points `jengine.plugins`)."""

from __future__ import annotations

from collections.abc import Iterator

from jengine.cli.checks.finding import Finding
from jengine.errors import ConfigError
from jengine.plugin_loading import installed_plugins, load_plugins


def check() -> Iterator[Finding]:
    """List plugins, and report if any fails to load."""
    plugins = installed_plugins()
    if not plugins:
        yield Finding("OK", "plugins", "none is installed")
        return
    try:
        load_plugins()
    except ConfigError as error:
        yield Finding("problem", "plugins", str(error))
    for plugin in plugins:
        package = f"{plugin.dist.name} {plugin.dist.version}" if plugin.dist else "unknown package"
        yield Finding("note", "plugins", f"{plugin.name} of {package}: {plugin.value}")
