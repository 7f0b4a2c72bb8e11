"""Settings of an engine as plain data, for a process that builds it there. No jax.

In: EngineArgs. Out: keyword arguments that msgpack can carry, or an error that names the setting.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np

from jengine.assembly.settings.args import EngineArgs
from jengine.errors import ConfigError


def refuse_arrays(args: EngineArgs, where: str) -> None:
    """Raise a ConfigError about settings with arrays, devices or functions of this process."""
    for name in ("params", "mesh"):
        if getattr(args, name) is not None:
            raise ConfigError(
                f"{where} with {name}=...: arrays and devices of this process cannot be used in "
                f"other processes; leave {name} out and give a model folder."
            )
    for one in args.logits_processors or ():
        if not isinstance(one, str):
            raise ConfigError(
                f"{where} with logits_processors={one!r:.80}: functions of this process cannot be "
                "used in other processes. Give its name, as 'package.module:name'."
            )


def plain_settings(
    args: EngineArgs, where: str, omit: Iterable[str], **changed: Any
) -> dict[str, Any]:
    """All settings but the omitted ones, with some changed. `where` names them in errors."""
    names = [item.name for item in fields(args) if item.name not in set(omit)]
    settings = {name: getattr(args, name) for name in names}
    if "dtype" in settings and not isinstance(args.dtype, str):
        settings["dtype"] = np.dtype(args.dtype).name
    settings.update(changed)
    try:
        return msgspec.to_builtins(settings)
    except TypeError as error:
        raise ConfigError(f"{where}: a setting cannot be sent to workers: {error}") from error
