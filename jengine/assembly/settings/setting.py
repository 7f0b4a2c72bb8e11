"""Declaration of EngineArgs' fields: `Annotated[type, Setting(...)]`. No jax.

In: a field's annotation. Out: its flag, the commands that have it, the processes that receive it.
Must not know single settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from enum import Flag, auto
from typing import Any, get_type_hints

HIDDEN = argparse.SUPPRESS  # help of a flag that is accepted but not shown


class Recipients(Flag):
    """Kinds of processes to which the starting process sends settings."""

    CORE = auto()  # a core process: scheduler and steps
    WORKER = auto()  # a worker: steps only
    RANK = auto()  # a data-parallel rank on Ray
    SERVER = auto()  # one of several API processes of a server
    CHECK = auto()  # preflight: the check before a download


CORE, WORKER, RANK, SERVER, CHECK = Recipients
NOBODY = Recipients(0)
ALL = ~NOBODY


@dataclass(frozen=True)
class Setting:
    """Declaration of a setting besides its type and default."""

    # Help of the flag; of a switch it describes changing the default. "": no flag.
    help: str = ""
    _: KW_ONLY
    short: str = ""  # vLLM's short flag
    renamed: str = ""  # vLLM's name, if values mean the same
    commands: str = ""  # that have the flag, besides those with all flags
    size: bool = False  # a number that may be given as text: "4096", "32k" (32,000), "32K" (32,768)
    recorded: bool = False  # needed for a replay; sizes are recorded separately, as resolved
    kept_from: Recipients = NOBODY
    check: Callable[[Any], object] | None = None  # raises a ConfigError; not called for None
    final: Callable[[Any], Any] | None = None  # normalises the value; not called for None


def declared(owner: type[Any]) -> dict[str, Setting]:
    """The declarations of a dataclass's fields, in order."""
    return {
        name: next((one for one in hint.__metadata__ if isinstance(one, Setting)), Setting())
        if hasattr(hint, "__metadata__")
        else Setting()
        for name, hint in get_type_hints(owner, include_extras=True).items()
        if hint is not KW_ONLY
    }
