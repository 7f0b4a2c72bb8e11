"""Settings of an engine as plain data, for a process that builds the engine. No jax.

In: EngineArgs. Out: keyword arguments that msgpack can encode, or an error that names the setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from jengine.assembly.settings.args import SETTINGS, EngineArgs
from jengine.assembly.settings.setting import Recipients
from jengine.errors import ConfigError


def refuse_arrays(where: str, params: Any, mesh: Any, processors: Sequence[Any] | None) -> None:
    """Raise a ConfigError for settings with arrays, devices or functions, which cannot be sent."""
    for name, value in (("params", params), ("mesh", mesh)):
        if value is not None:
            raise ConfigError(
                f"{where} with {name}=...: arrays and devices of this process cannot be used in "
                f"other processes; leave {name} out and give a model folder."
            )
    for one in processors or ():
        if not isinstance(one, str):
            raise ConfigError(
                f"{where} with logits_processors={one!r:.80}: functions of this process cannot be "
                "used in other processes. Give its name, as 'package.module:name'."
            )


def plain_settings(
    args: EngineArgs, where: str, process: Recipients, **changed: Any
) -> dict[str, Any]:
    """Return the settings to send to another process, some overridden; `where` names it."""
    names = [name for name, one in SETTINGS.items() if process not in one.kept_from]
    settings = {name: getattr(args, name) for name in names}
    if "dtype" in settings and not isinstance(args.dtype, str):
        settings["dtype"] = np.dtype(args.dtype).name
    settings.update(changed)
    try:
        return msgspec.to_builtins(settings)
    except TypeError as error:
        raise ConfigError(f"{where}: a setting cannot be sent to workers: {error}") from error
