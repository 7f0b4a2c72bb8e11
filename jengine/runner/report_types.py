"""Reports of a runner and its devices: plain data that is sent between processes. No jax."""

from __future__ import annotations

import msgspec

# vLLM's tags of sleep mode.
WEIGHTS, CACHE = "weights", "kv_cache"
SLEEPERS = (WEIGHTS, CACHE)


class DeviceMemory(msgspec.Struct, frozen=True):
    """Bytes on the first device of a process; None where the device does not report them."""

    platform: str
    devices: int  # of this process
    weights: int
    cache: int
    row_state: int
    in_use: int | None
    limit: int | None


class ProgramCounts(msgspec.Struct, frozen=True):
    """Numbers of compiled programs."""

    programs: int
    compiles_after_warm_up: int
    programs_to_come: int = 0  # still to be compiled in the background
    on_first_use: tuple[str, ...] = ()  # variants compiled by the first step that needs them
