"""The input of the driver of data-parallel ranks on Ray, as plain data. No Ray."""

from __future__ import annotations

from typing import Any

import msgspec


class RanksJob(msgspec.Struct, frozen=True):
    options: dict[str, Any]  # of Ray
    devices: int  # that each rank takes
    program: str  # that each rank runs, as package.module:function
    jobs: list[bytes]  # one for each rank
    report: int  # the number of the open file for ranks that have ended
