"""Progress bars and messages for people who wait: bars on terminals and in notebooks only."""

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
    """A tqdm factory. None: on in a terminal or notebook. A callable is used as it is.

    A bar disappears when it is complete, and a bar for nothing is not drawn.
    """
    if callable(wanted):
        return wanted
    visible = in_notebook() or (sys.stderr is not None and sys.stderr.isatty())
    shown = visible if wanted is None else wanted and visible

    def bar(**options: Any) -> Any:
        idle = not shown or options.get("total") == 0
        return tqdm(None, dynamic_ncols=True, disable=idle, leave=False, **options)

    return bar
