"""Where an engine's cores run, and the settings sent to each process. No jax.

In: EngineArgs. Out: a Deployment, which converts settings to plain data. Must not start a process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.plain_settings import plain_settings, refuse_arrays
from jengine.assembly.settings.setting import CORE, RANK, Recipients
from jengine.connectors.kv_events import RANK as EVENTS_RANK
from jengine.connectors.settings import config_of_rank
from jengine.errors import ConfigError
from jengine.plugin_loading import load_plugins
from jengine.weights.resolve import resolve_model
from jengine.wire.doors import checked_secret, outward_address

WHERE = "an engine core in a process of its own"
ON_RAY = "a data-parallel rank on Ray"
SECRET = "data_parallel_secret (JENGINE_DATA_PARALLEL_SECRET)"  # noqa: S105 - where it is given
SERVE = "serve"


class CoreSettings(msgspec.Struct, frozen=True):
    """Settings sent to a core's process."""

    engine: dict[str, Any]  # keyword arguments of EngineArgs
    tells_contents: bool = False  # whether the core reports cache contents to fronts


@dataclass(frozen=True)
class Deployment:
    """Settings of an engine with cores in other processes, and the model's folder."""

    args: EngineArgs
    folder: Path

    def told(self, process: Recipients, where: str, **changed: Any) -> dict[str, Any]:
        """Return the settings as plain data for another process; `where` names that process in
        errors."""
        return plain_settings(self.args, where, process, model=str(self.folder), **changed)

    def core(self, rank: int | None = None) -> bytes:
        """Settings message for the core of a data-parallel rank; None: the only core."""
        settings = self.told(CORE, WHERE, skip_tokenizer_init=True)
        if rank is not None:
            settings.update(rank_settings(settings, rank))
        return msgspec.msgpack.encode(CoreSettings(settings, tells_contents=rank is not None))

    def on_ray(self, host: str, rank: int) -> bytes:
        """Settings message for one rank on Ray, the only one of its host, which joins the front at
        `host`."""
        settings = self.told(
            RANK, ON_RAY,
            show_progress=False,
            data_parallel_backend="process",
            data_parallel_size_local=1,
            data_parallel_start_rank=rank,
            data_parallel_address=host,
        )  # fmt: skip
        return msgspec.msgpack.encode(settings)

    @property
    def secret(self) -> bytes:
        """The secret from which an engine's hosts derive their keys."""
        return checked_secret(SECRET, self.args.data_parallel_secret)

    @property
    def address(self) -> str:
        """Address of the front's host, where ranks join; for Ray, the default one."""
        args = self.args
        if args.data_parallel_address is None and args.data_parallel_backend == "ray":
            given = (args.data_parallel_options or {}).get("address")
            return outward_address(given or os.environ.get("RAY_ADDRESS"))
        return args.data_parallel_address or ""


def deployment_of(args: EngineArgs) -> Deployment:
    """The deployment. Raises ConfigError for settings with arrays, modules or functions."""
    load_plugins()
    refuse_arrays(WHERE, args.params, args.mesh, args.logits_processors)
    if not isinstance(args.model, (str, Path)):
        raise ConfigError(
            f"{WHERE}: model is a {type(args.model).__name__}, which is in this process; expected "
            "the path of a folder, or 'demo'. Save it first, or leave multiprocess=True out."
        )
    return Deployment(args, resolve_model(args.model).absolute())


def rank_settings(settings: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Settings that differ by data-parallel rank: each has its own ports for KV events and block
    transfers, and only the first serves weights."""
    changed: dict[str, Any] = {"data_parallel_size": None}
    if not rank:
        return changed
    if settings["kv_events_config"]:
        changed["kv_events_config"] = {**settings["kv_events_config"], EVENTS_RANK: rank}
    if settings["kv_transfer_config"]:
        changed["kv_transfer_config"] = config_of_rank(settings["kv_transfer_config"], rank)
    weights: Mapping[str, Any] = settings["model_loader_extra_config"] or {}
    if SERVE in weights:
        kept = {key: value for key, value in weights.items() if key != SERVE}
        changed["model_loader_extra_config"] = kept if "peer" in kept else None
    return changed
