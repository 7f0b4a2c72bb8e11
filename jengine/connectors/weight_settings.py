"""Settings of weight transfer between engines: `model_loader_extra_config`.

In: the setting and the load format. Out: where this engine serves its weights, and where it fetches
them from. No jax.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jengine.connectors.settings import MOST_SECONDS, is_number, is_whole, known_keys
from jengine.errors import ConfigError
from jengine.wire.doors import checked_secret, tcp

NAME = "model_loader_extra_config"
SECRET_VARIABLE = "JENGINE_WEIGHTS_SECRET"  # noqa: S105 - a name
KEYS = {
    "peer": "'host:port' of an engine that serves its weights; for load_format='peer'",
    "serve": "'host:port' at which this engine serves its weights",
    "secret": "text of at least 16 bytes that both know",
    "readers": "connections that read at a time",
    "timeout_seconds": "seconds in which the other engine must answer",
}
ADDRESS = re.compile(r"\[?([^\[\]]+)\]?:(\d{1,5})")
PEER = "peer"


@dataclass(frozen=True, kw_only=True)
class WeightSettings:
    """ZMQ addresses for serving and fetching weights, and the shared key."""

    secret: bytes = field(repr=False)
    peer: str | None = None  # address to fetch weights from
    serve: str | None = None  # address to serve weights at
    readers: int = 4
    seconds: float = 60.0


def weight_settings(load_format: str, config: Mapping[str, Any] | None) -> WeightSettings | None:
    """Parse `model_loader_extra_config`; None if weights are neither served nor fetched."""
    config = config or {}
    known_keys(NAME, config, KEYS)
    if (load_format == PEER) != ("peer" in config):
        raise ConfigError(
            f"load_format={load_format!r} and {NAME}={dict(config)!r}: weights come from another "
            f"engine with load_format='peer' and {NAME}={{'peer': 'host:port'}}. Give both or "
            "neither."
        )
    if not config:
        return None
    readers, seconds = config.get("readers", 4), config.get("timeout_seconds", 60.0)
    if not is_whole(readers) or not 1 <= readers <= 64:
        raise ConfigError(f"{NAME}['readers']={readers!r}: expected a number from 1 to 64.")
    if not is_number(seconds) or not 0 < seconds <= MOST_SECONDS:
        raise ConfigError(
            f"{NAME}['timeout_seconds']={seconds!r}: expected a number above 0, at most "
            f"{MOST_SECONDS:g}."
        )
    secret = config.get("secret") or os.environ.get(SECRET_VARIABLE)
    return WeightSettings(
        secret=checked_secret(f"{NAME}['secret'], or {SECRET_VARIABLE}", secret),
        peer=address("peer", config.get("peer")),
        serve=address("serve", config.get("serve")),
        readers=readers,
        seconds=float(seconds),
    )


def address(key: str, given: Any) -> str | None:
    """Turn 'host:port' into a ZMQ endpoint; None stays None."""
    if given is None:
        return None
    found = ADDRESS.fullmatch(given) if isinstance(given, str) else None
    if found is None or not 0 < int(found[2]) < 2**16:
        raise ConfigError(f"{NAME}[{key!r}]={given!r}: expected 'host:port'.")
    return tcp(found[1], int(found[2]))
