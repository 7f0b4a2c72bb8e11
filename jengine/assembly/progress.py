"""Progress bars: on for terminals and notebooks, off elsewhere, or as the user says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

ProgressFactory = Callable[..., Any]


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    return "ipykernel" in sys.modules


def progress_factory(wanted: bool | ProgressFactory | None) -> ProgressFactory:
    """A tqdm factory. None: on where somebody can see it. A callable is used as it is."""
    if callable(wanted):
        return wanted
    visible = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    shown = visible if wanted is None else wanted and visible

    def bar(**options: Any) -> Any:
        return tqdm(None, dynamic_ncols=True, disable=not shown, **options)

    return bar
