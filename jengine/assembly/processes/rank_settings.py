"""What the settings of one data-parallel rank's core are, where those of all would collide. No jax.

In: EngineArgs, the number of a rank. Out: the settings that differ: each rank publishes its events
at ports of its own and serves its blocks at one, and the first one alone serves its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jengine.assembly.settings.args import EngineArgs
from jengine.connectors.kv_events import RANK
from jengine.connectors.settings import config_of_rank

SERVE = "serve"


def rank_settings(args: EngineArgs, rank: int) -> dict[str, Any]:
    """The settings of a rank's core that are not those of the whole engine."""
    changed: dict[str, Any] = {"data_parallel_size": None}
    if not rank:
        return changed
    if args.kv_events_config:
        changed["kv_events_config"] = {**args.kv_events_config, RANK: rank}
    if args.kv_transfer_config:
        changed["kv_transfer_config"] = config_of_rank(args.kv_transfer_config, rank)
    weights: Mapping[str, Any] = args.model_loader_extra_config or {}
    if SERVE in weights:
        kept = {key: value for key, value in weights.items() if key != SERVE}
        changed["model_loader_extra_config"] = kept if "peer" in kept else None
    return changed
