"""Reports of a runner and its devices: plain data that is sent between processes. No jax."""

from __future__ import annotations

import msgspec

# The parts of an engine that sleep and wake: vLLM's tags.
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
    """How many programs were compiled."""

    programs: int
    compiles_after_warm_up: int
    programs_to_come: int = 0  # being compiled while steps run
    on_first_use: tuple[str, ...] = ()  # variants that the first step to need them compiles
