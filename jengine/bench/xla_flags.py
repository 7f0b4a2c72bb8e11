"""Which of XLA's flags the installed version knows; it ends the process at any other.

Imports no jax: flags are read when it is loaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import cache
from mmap import ACCESS_READ, mmap
from pathlib import Path


def known_flags(flags: Iterable[str]) -> str:
    """XLA_FLAGS of those among these that the installed XLA knows."""
    return " ".join(flag for flag in flags if is_flag_of_xla(flag.partition("=")[0]))


@cache
def is_flag_of_xla(flag: str) -> bool:
    """Whether the installed XLA knows a flag.

    The name of a flag is a whole string of a library; that of one which is gone may still stand in
    the description of a message.
    """
    spec = importlib.util.find_spec("jaxlib")
    assert spec is not None and spec.submodule_search_locations
    for library in Path(spec.submodule_search_locations[0]).glob("*.so*"):
        with library.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            if content.find(b"\0%s\0" % flag.removeprefix("--").encode()) >= 0:
                return True
    return False
