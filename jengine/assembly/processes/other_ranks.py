"""The data-parallel ranks that do not run in child processes of this one. No jax.

In: EngineArgs. Out: where their cores are, once they have joined. Ranks of other hosts come by
themselves (`--headless`); those on Ray are started here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

import jengine
from jengine.assembly.processes.cores import secret_of
from jengine.assembly.processes.ray_ranks import RayRanks
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.plain_settings import plain_settings
from jengine.assembly.settings.setting import RANK
from jengine.distributed.joining import JoinDesk
from jengine.engine.process.beginning import Tell
from jengine.wire.hosts import Door, checked_host, outward_address

WHERE = "a data-parallel rank on Ray"


def other_ranks(args: EngineArgs, folder: Path) -> OtherRanks | None:
    """Those of an engine; None if it has none."""
    return OtherRanks(args, folder) if args.ranks.elsewhere else None


class OtherRanks:
    """The desk where their cores join, and what was started for them."""

    def __init__(self, args: EngineArgs, folder: Path) -> None:
        host = checked_host("data_parallel_address", front_address(args))
        door = Door(host, secret_of(args), args.data_parallel_rpc_port)
        others = range(len(args.ranks.local), args.ranks.size)
        self._desk = JoinDesk(door, others, jengine.__version__)
        self._ray: RayRanks | None = None
        if args.data_parallel_backend == "ray":
            try:
                self._ray = RayRanks(
                    args.data_parallel_options or {}, args.devices_per_replica,
                    [rank_job(args, folder, host, rank) for rank in others],
                )  # fmt: skip
            except BaseException:
                self._desk.close()
                raise

    def wait(self, tell: Tell, seconds: float) -> list[str]:
        """The addresses of all, in the order of their ranks."""
        return self._desk.wait(tell, seconds, self._check)

    def when_back(self, tell: Callable[[int, str], None]) -> None:
        """Have a function called with rank and address of a core that has joined again."""
        self._desk.when_back(tell)

    def close(self) -> None:
        """Let them end: other hosts notice that the front has gone."""
        if self._ray is not None:
            self._ray.is_ending = True
        self._desk.close()
        if self._ray is not None:
            self._ray.stop()

    def _check(self) -> None:
        if self._ray is not None:
            self._ray.check()


def front_address(args: EngineArgs) -> str:
    """The address of this host at which ranks join; for those on Ray the usual one."""
    if args.data_parallel_address is None and args.data_parallel_backend == "ray":
        given = (args.data_parallel_options or {}).get("address")
        return outward_address(given or os.environ.get("RAY_ADDRESS"))
    return args.data_parallel_address or ""


def rank_job(args: EngineArgs, folder: Path, host: str, rank: int) -> bytes:
    """The settings of one rank on Ray: a host with this rank alone, which joins the front."""
    settings = plain_settings(
        args, WHERE, RANK,
        model=str(folder),
        show_progress=False,
        data_parallel_backend="process",
        data_parallel_size_local=1,
        data_parallel_start_rank=rank,
        data_parallel_address=host,
    )  # fmt: skip
    return msgspec.msgpack.encode(settings)
