"""Folder for the traces of `start_profile()`.

In: an engine's profiler_config and a prefix. Out: a folder. Must not know what is recorded.
"""

from __future__ import annotations

from pathlib import Path

from jengine.errors import ConfigError


def trace_folder(wanted: str | None, prefix: str | None = None) -> str:
    """Folder of the next trace; with a prefix, a subfolder of that name."""
    if wanted is None:
        raise ConfigError(
            "start_profile() without a folder to write to: create the engine with "
            "profiler_config={'profiler': 'jax', 'dir': folder}, or use jax.profiler.trace(folder)."
        )
    folder = Path(wanted).expanduser().absolute()
    return str(folder if prefix is None else folder / prefix)
