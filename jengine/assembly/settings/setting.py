"""How the fields of EngineArgs declare themselves: `Annotated[type, Setting(...)]`. No jax.

In: a field's annotation. Out: its flag, the commands that have it, the processes that are told it.
Must not know single settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Any, get_type_hints

HIDDEN = argparse.SUPPRESS  # the help of a flag that is taken without being shown


class Recipients(Flag):
    """Kinds of processes that receive settings from the one that the user starts."""

    CORE = auto()  # scheduler and steps, without texts
    WORKER = auto()  # steps alone
    RANK = auto()  # a data-parallel rank on Ray
    SERVER = auto()  # one of several API processes of a server
    CHECK = auto()  # whether a model fits, before it is downloaded


CORE, WORKER, RANK, SERVER, CHECK = Recipients
NOBODY = Recipients(0)
ALL = ~NOBODY


@dataclass(frozen=True)
class Setting:
    """Declaration of a setting besides its type and default."""

    # Of the flag; of a switch it is about changing the default. Without it there is no flag.
    help: str = ""
    _: KW_ONLY
    short: str = ""  # vLLM's short flag
    renamed: str = ""  # vLLM's name for it, where the value means the same
    commands: str = ""  # that have the flag, besides those that have all
    size: bool = False  # a number that may be given as text: "4096", "32k" (32,000), "32K" (32,768)
    recorded: bool = False  # recorded steps need the same; sizes are recorded as they turned out
    kept_from: Recipients = NOBODY
    check: Callable[[Any], object] | None = None  # raises a ConfigError about a value but None
    final: Callable[[Any], Any] | None = None  # the form in which rooms get a value but None


def declared(owner: type[Any]) -> dict[str, Setting]:
    """The declarations of a dataclass's fields, in their order."""
    return {
        name: next((one for one in hint.__metadata__ if isinstance(one, Setting)), Setting())
        if hasattr(hint, "__metadata__")
        else Setting()
        for name, hint in get_type_hints(owner, include_extras=True).items()
        if hint is not KW_ONLY
    }
