"""Options of downloads from the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jengine.hub.wanted import MODEL, WantedFiles

# Given a folder with a model's small files, or a GGUF file of which the header alone is there,
# raises if its weights would be of no use here.
Check = Callable[[Path], None]
# A factory of bars as tqdm's: with total, initial, desc, unit and unit_scale.
Bar = Callable[..., Any]
# Whether the first bytes of a file, that many, hold its header.
HasHeader = Callable[[Path, int], bool]


def on_terminals(**options: Any) -> Any:
    """A progress bar that is drawn on terminals and in notebooks only."""
    from tqdm.auto import tqdm

    return tqdm(disable=None, dynamic_ncols=True, **options)


def silent(**options: Any) -> Any:
    """A progress bar that is never drawn."""
    from tqdm import tqdm

    return tqdm(disable=True, **options)


@dataclass(frozen=True)
class HubOptions:
    """Revision (None: main), cache directory (None: Hugging Face's), token (None: from the
    environment, False: none) and the files to get."""

    revision: str | None = None
    cache_dir: str | Path | None = None
    token: str | bool | None = field(default=None, repr=False)
    ignore_patterns: tuple[str, ...] = ()
    wanted: WantedFiles = MODEL
    check: Check | None = None
    has_header: HasHeader | None = None  # None: `check` sees no files of weights
    bar: Bar = on_terminals
