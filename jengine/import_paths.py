"""Imports objects that settings name as `package.module:name`."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

from jengine.errors import ConfigError


def imported(setting: str, path: str, *, advice: str = "") -> Any:
    """Import the object. Raises ConfigError, which names the setting."""
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:  # ValueError: an empty part
        advice = advice or (
            "Expected 'package.module:name', in a package that every process of the engine finds."
        )
        raise ConfigError(f"{setting}={path!r} cannot be imported: {error}. {advice}") from error
