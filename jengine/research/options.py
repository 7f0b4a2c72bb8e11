"""What a user may choose about a comparison, and which of it makes no sense.

In: options. Out: the same, checked, and the names of tap points. Must not know engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from jengine.config import ModelConfig
from jengine.errors import ConfigError, nearest_name
from jengine.models.tap_points import tap_points

TORCH = "torch"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of `llm.compare` and `jengine compare`."""

    against: str | Path = TORCH  # or the folder of a bundle
    prompts: Sequence[str | Sequence[int]] | None = None  # None: built-in ones
    new_tokens: int = 24
    points: Sequence[str] = ("*",)  # tap points; patterns with *
    sweeps: bool = True
    torch_python: str | None = None
    torch_device: str = "cpu"
    save_bundle: str | Path | None = None
    command: str = "llm.compare()"
    note: Callable[[str], None] = lambda _: None  # called with a line before each long phase


def check_options(options: Options) -> None:
    """Raise ConfigError for options that contradict each other."""
    if type(options.new_tokens) is not int or options.new_tokens < 0:
        raise ConfigError(f"new_tokens={options.new_tokens!r}: expected a whole number from 0.")
    if options.against == TORCH:
        return
    unused = [name for name in ("prompts", "save_bundle", "torch_python") if vars(options)[name]]
    if unused:
        flag = unused[0].replace("_", "-")
        raise ConfigError(
            f"{flag} is for a reference that is made now, and against={str(options.against)!r} is "
            f"a saved bundle. Leave one of them out; against={TORCH!r} makes a new reference."
        )


def wanted_points(config: ModelConfig, patterns: Sequence[str]) -> list[str]:
    """The tap points that match, in the order of computation."""
    known = [point.name for point in tap_points(config)]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ConfigError(
                f"there is no tap point {pattern!r} in this model. It has 'embed', 'norm', and "
                "'layers.N.attention', 'layers.N.mlp', 'layers.N.output' with N from 0 to "
                f"{len(config.layers) - 1}, or * for all.{nearest_name(str(pattern), known)}"
            )
    return [name for name in known if any(fnmatchcase(name, one) for one in patterns)]
