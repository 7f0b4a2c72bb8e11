"""Settings of LoRA adapters, and their checks. No jax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from jengine.adapters import DTYPES, RANKS, AdapterLimits
from jengine.assembly.settings.setting import Setting
from jengine.assembly.settings.values import one_of
from jengine.errors import ConfigError


@dataclass(kw_only=True)
class AdapterArgs:
    """LoRA adapters."""

    enable_lora: Annotated[bool, Setting(
        "answer requests with LoRA adapters, which are loaded while the engine runs"
    )] = False  # fmt: skip
    max_loras: Annotated[int, Setting("LoRA adapters that a step may use at once", size=True)] = 1
    max_lora_rank: Annotated[int, Setting("largest rank of a LoRA adapter", size=True)] = 16
    # None: max_loras.
    max_cpu_loras: Annotated[int | None, Setting(
        "LoRA adapters kept in memory; the least recently used is dropped first", size=True
    )] = None  # fmt: skip
    lora_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], Setting(
        "type of adapters' matrices: auto (the model's), float32, bfloat16, float16"
    )] = "auto"  # fmt: skip
    lora_target_modules: Annotated[Sequence[str] | None, Setting(
        "modules that adapters may change, such as q_proj; all by default"
    )] = None  # fmt: skip

    @property
    def adapter_limits(self) -> AdapterLimits | None:
        """Number, rank and dtype of LoRA adapters; None if LoRA is off. Raises ConfigError."""
        most, rank, kept = self.max_loras, self.max_lora_rank, self.max_cpu_loras
        modules = self.lora_target_modules
        one_of("lora_dtype", self.lora_dtype, DTYPES)
        if not 1 <= rank <= RANKS[-1]:
            raise ConfigError(f"max_lora_rank={rank}: expected 1 to {RANKS[-1]}.")
        if kept is not None and kept < most:
            raise ConfigError(
                f"max_cpu_loras={kept} is less than max_loras={most}: every adapter of a "
                "step is in the host's memory as well. Raise it, or leave it out."
            )
        if isinstance(modules, str):
            raise ConfigError(f"lora_target_modules={modules!r}: expected a list of module names.")
        if not self.enable_lora:
            return None
        named = None if modules is None else tuple(map(str, modules))
        return AdapterLimits(most, rank, most if kept is None else kept, self.lora_dtype, named)
