"""The step's part of LoRA adapters: sizes of their arrays, and the variants that take them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jengine.assembly.settings.groups import Groups
from jengine.runner.runner_config import AdapterConfig
from jengine.runner.variants.features import Features, with_adapters


def adapter_config(asked: Groups) -> AdapterConfig | None:
    """Capacity of the adapter arrays; None without adapters."""
    limits = asked.adapters
    if limits is None:
        return None
    return AdapterConfig(
        limits.max_loras, limits.rank, limits.max_rank, limits.dtype, limits.target_modules
    )


def with_adapted(known: Mapping[str, Features], wanted: Sequence[str]) -> tuple[str, ...]:
    """Add variants with adapters to the wanted ones: of the plain ones, and of the most capable
    one."""
    common = [name for name in wanted if name in known and known[name].is_plain]
    last = [name for name in known if name in wanted][-1:]
    adapted = [with_adapters(name) for name in (*common, *last)]
    return (*wanted, *(name for name in adapted if name in known))
