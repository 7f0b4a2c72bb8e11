"""The settings of LoRA adapters, checked. No jax."""

from __future__ import annotations

from collections.abc import Sequence

from jengine.adapters import DTYPES, RANKS, AdapterLimits
from jengine.assembly.settings.values import one_of
from jengine.errors import ConfigError


def adapter_limits(
    enabled: bool,
    max_loras: int,
    max_rank: int,
    max_cpu_loras: int | None,
    dtype: str,
    modules: Sequence[str] | None,
) -> AdapterLimits | None:
    """Check the LoRA settings and combine them; None if LoRA is off."""
    one_of("lora_dtype", dtype, DTYPES)
    if not 1 <= max_rank <= RANKS[-1]:
        raise ConfigError(f"max_lora_rank={max_rank}: expected 1 to {RANKS[-1]}.")
    if max_cpu_loras is not None and max_cpu_loras < max_loras:
        raise ConfigError(
            f"max_cpu_loras={max_cpu_loras} is less than max_loras={max_loras}: every adapter of a "
            "step is in the host's memory as well. Raise it, or leave it out."
        )
    if isinstance(modules, str):
        raise ConfigError(f"lora_target_modules={modules!r}: expected a list of module names.")
    if not enabled:
        return None
    return AdapterLimits(
        max_loras,
        max_rank,
        max_loras if max_cpu_loras is None else max_cpu_loras,
        dtype,
        None if modules is None else tuple(map(str, modules)),
    )
