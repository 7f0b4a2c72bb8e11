"""The machine that compiled programs are for: versions, devices and instruction sets.

Out: a Machine, which can be serialised and compared with another. Must not know caches.
"""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import jax
import jaxlib
import msgspec

import jengine

# Flags in /proc/cpuinfo that a compiler may use; the others are about virtualisation and
# mitigations.
INSTRUCTIONS = re.compile(
    r"(s?sse|avx|amx|fma|bmi|f16c|aes|sha|vaes|vpclmul|pclmul|gfni|popcnt|movbe|adx|abm|xop|asimd"
    r"|sve|bf16|i8mm|fphp)\w*"
)


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where programs were compiled. Field names are shown in errors."""

    jengine: str
    jax: str
    jaxlib: str
    system: str  # operating system and processor family
    platform: str  # cpu, gpu
    platform_version: str  # of the compiler and the driver
    device: str
    devices: int
    instructions: list[str]  # of the processor
    xla_flags: list[str]

    def differences(self, here: Machine) -> list[str]:
        """Fields in which this machine differs from `here`, for an error message."""
        found = []
        for name in self.__struct_fields__:
            there, ours = getattr(self, name), getattr(here, name)
            if there == ours:
                continue
            if isinstance(there, list):
                gone, new = sorted({*there} - {*ours}), sorted({*ours} - {*there})
                there, ours = " ".join(gone) or "no others", " ".join(new) or "no others"
            found.append(f"{name.replace('_', ' ')}: {there} there, {ours} here")
        return found


def this_machine() -> Machine:
    """The machine that this process runs on, as JAX sees it. Starts its devices."""
    device = jax.devices()[0]
    return Machine(
        jengine=jengine.__version__,
        jax=jax.__version__,
        jaxlib=jaxlib.__version__,
        system=f"{platform.system()} {platform.machine()}",
        platform=device.platform,
        platform_version=device.client.platform_version,
        device=device.device_kind,
        devices=jax.device_count(),
        instructions=instructions(Path("/proc/cpuinfo")),
        xla_flags=sorted(os.environ.get("XLA_FLAGS", "").split()),
    )


def instructions(listing: Path) -> list[str]:
    """The processor's instruction sets as Linux lists them, or its name."""
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor()]
    words = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return sorted({word for word in words.split() if INSTRUCTIONS.fullmatch(word)})
