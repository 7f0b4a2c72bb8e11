"""LoRA adapters as users name them and requests refer to them. No jax.

Requests name an adapter; the core identifies it by a digest of its content. So two adapters of one
name never share cached prefixes, and a running request keeps the adapter that it started with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from jengine.errors import ConfigError

# Ranks that steps are compiled for; `max_lora_rank` is rounded up to one of them.
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class LoRARequest:
    """An adapter for `generate(..., lora_request=)`: a name, a user-chosen number, and the folder
    with PEFT's files. With `load_inplace` it replaces the adapter of the same number."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = field(default=None, compare=False)
    load_inplace: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        number = self.lora_int_id
        if not isinstance(self.lora_name, str) or not self.lora_name:
            raise ConfigError(f"lora_name={self.lora_name!r}: expected a string that is not empty.")
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigError(f"lora_int_id={number!r}: expected an integer of at least 1.")
        if not isinstance(self.lora_path, str):
            object.__setattr__(self, "lora_path", str(self.lora_path))

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


def adapter_modules(texts: Sequence[str]) -> list[LoRARequest]:
    """The adapters of --lora-modules: NAME=FOLDER, or JSON with name, path and base_model_name."""
    found: list[LoRARequest] = []
    for number, text in enumerate(texts, start=1):
        name, is_pair, folder = text.partition("=")
        base = None
        if text.lstrip().startswith("{"):
            try:
                module = msgspec.json.decode(text, type=AdapterModule)
            except msgspec.DecodeError as error:
                raise ConfigError(f"--lora-modules {text!r}: {error}.") from error
            name, is_pair, folder, base = module.name, "=", module.path, module.base_model_name
        if not (name and is_pair and folder):
            raise ConfigError(
                f'--lora-modules {text!r}: expected NAME=FOLDER, or {{"name": ..., "path": ...}}.'
            )
        if name in [one.lora_name for one in found]:
            raise ConfigError(f"--lora-modules: there are two adapters named {name!r}.")
        found.append(LoRARequest(name, number, folder, base))
    return found


class AdapterModule(msgspec.Struct, frozen=True):
    """One adapter as --lora-modules takes it in JSON."""

    name: str
    path: str
    base_model_name: str | None = None


class AdapterLimits(msgspec.Struct, frozen=True):
    max_loras: int  # per step
    max_rank: int
    max_cpu_loras: int  # cached in host memory while unused
    dtype: str  # auto: the model's
    target_modules: tuple[str, ...] | None = None  # modules that may be adapted; None: all

    @property
    def rank(self) -> int:
        """LoRA rank of the step's arrays."""
        return next(rank for rank in RANKS if rank >= self.max_rank)


class AdapterReport(msgspec.Struct, frozen=True):
    """A worker's report about a loaded adapter."""

    digest: str  # of its content
    rank: int
    nbytes: int
    modules: int
