"""Settings of LoRA adapters. No jax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from jengine.adapters import AdapterLimits
from jengine.assembly.settings.adapter_settings import adapter_limits
from jengine.assembly.settings.setting import Setting


@dataclass(kw_only=True)
class AdapterArgs:
    """LoRA adapters."""

    enable_lora: Annotated[bool, Setting(
        "answer requests with LoRA adapters, which are loaded while the engine runs"
    )] = False  # fmt: skip
    max_loras: Annotated[int, Setting("LoRA adapters that a step may use at once", size=True)] = 1
    max_lora_rank: Annotated[int, Setting("largest rank of a LoRA adapter", size=True)] = 16
    # None: as many as a step.
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
        """Number, rank and dtype of LoRA adapters; None if LoRA is off."""
        return adapter_limits(
            self.enable_lora, self.max_loras, self.max_lora_rank, self.max_cpu_loras,
            self.lora_dtype, self.lora_target_modules,
        )  # fmt: skip
