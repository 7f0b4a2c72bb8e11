"""The input of the driver of data-parallel ranks on Ray, as plain data. No Ray."""

from __future__ import annotations

from typing import Any

import msgspec


class RanksJob(msgspec.Struct, frozen=True):
    options: dict[str, Any]  # RayOptions
    devices: int  # per rank
    program: str  # package.module:function, run by each rank
    jobs: list[bytes]  # one per rank
    report: int  # file descriptor for reports of ended ranks
