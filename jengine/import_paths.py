"""Imports what a setting names as `package.module:name`."""

from __future__ import annotations

import importlib
from functools import reduce
from typing import Any

from jengine.errors import ConfigError


def imported(setting: str, path: str, *, advice: str = "") -> Any:
    """The object. Raises ConfigError, which names the setting, if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        return reduce(getattr, name.split("."), importlib.import_module(module))
    except (ImportError, AttributeError, ValueError) as error:  # an empty part is a ValueError
        advice = advice or (
            "Expected 'package.module:name', in a package that every process of the engine finds."
        )
        raise ConfigError(f"{setting}={path!r} cannot be imported: {error}. {advice}") from error
