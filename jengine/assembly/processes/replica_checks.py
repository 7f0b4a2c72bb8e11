"""Checks that all cores serve the same model, as files may differ between hosts.

In: clients, and their cores' Ready messages. Out: a ConfigError that names a core.
"""

from __future__ import annotations

from collections.abc import Sequence

import jengine
from jengine.engine.process.client import ProcessClient
from jengine.engine.process.to_front import Ready
from jengine.errors import ConfigError


def check_replicas(clients: Sequence[ProcessClient], ready: Sequence[Ready]) -> None:
    """Raise ConfigError unless all cores serve the same model."""
    for client, one in zip(clients, ready, strict=True):
        check_version(client, one)
        if one.model.config != ready[0].model.config:
            raise ConfigError(
                f"the core at {client.address} serves another model than the one at "
                f"{clients[0].address}. Give every host the same model."
            )
        sizes = [(of.cache.block_size, of.schedule.max_model_len) for of in (one, ready[0])]
        if sizes[0] != sizes[1]:
            raise ConfigError(
                f"the core at {client.address} has blocks of {sizes[0][0]} tokens and "
                f"max_model_len={sizes[0][1]}; the one at {clients[0].address} has {sizes[1][0]} "
                f"and {sizes[1][1]}. Give every host the same block_size and max_model_len."
            )


def check_version(client: ProcessClient, ready: Ready) -> None:
    """Raise ConfigError for a core of another version, whose messages may differ."""
    if ready.version != jengine.__version__:
        raise ConfigError(
            f"the core at {client.address} runs jengine {ready.version}, and this process "
            f"{jengine.__version__}. Use the same version in both."
        )
