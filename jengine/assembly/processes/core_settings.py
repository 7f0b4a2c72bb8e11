"""What the program of a core process is told: settings as plain data. No jax."""

from __future__ import annotations

from typing import Any

import msgspec


class CoreSettings(msgspec.Struct, frozen=True):
    """An engine's settings, and what its front wants to be told."""

    engine: dict[str, Any]  # keyword arguments of EngineArgs
    tells_contents: bool = False  # whether fronts are told what the cache holds
