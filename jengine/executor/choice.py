"""Resolves `executor=`: a built-in executor or the class of a plugin.

In: the argument. Out: a class with all methods of an executor. Must not know engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from jengine.errors import ConfigError, nearest_name
from jengine.import_paths import imported

if TYPE_CHECKING:
    from jengine.executor.protocol import StartedExecutor

# Run in processes started by the user, on the devices that JAX sees there.
OWN_PROCESSES = ("auto", "local", "multihost")
# Start workers. Imported on demand: their dependencies may not be installed.
STARTING = {"ray": "jengine.executor.ray.executor:RayExecutor"}
INSTALL = {"ray": "pip install 'jengine[ray]'"}
METHODS = ("start", "submit", "update_weights", "call_workers", "health", "shutdown")


def checked_executor(value: Any) -> str:
    """Validate the form of `executor=` without importing anything."""
    known = (*OWN_PROCESSES, *STARTING)
    if isinstance(value, str) and (value in known or is_import_path(value)):
        return value
    hint = nearest_name(value, known) if isinstance(value, str) else ""
    raise ConfigError(
        f"executor={value!r}: expected one of {', '.join(map(repr, known))}, or an import path "
        f"such as 'package.module:Class'.{hint}"
    )


def is_import_path(value: str) -> bool:
    """Whether it has the form `package.module:Class`."""
    module, colon, name = value.partition(":")
    return bool(colon) and name.isidentifier() and all(map(str.isidentifier, module.split(".")))


def starting_executor(value: str) -> type[StartedExecutor]:
    """Import and return the StartedExecutor class."""
    advice = f"Install: {INSTALL[value]}" if value in INSTALL else ""
    found = imported("executor", STARTING.get(value, value), advice=advice)
    if not isinstance(found, type):
        raise ConfigError(f"executor={value!r} is not a class.")
    missing = [method for method in METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise ConfigError(
            f"executor={value!r} lacks {', '.join(missing)}. "
            "jengine/executor/protocol.py says what an executor does."
        )
    return cast("type[StartedExecutor]", found)
