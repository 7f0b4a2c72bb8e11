"""Progress bars and messages for waiting users."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

ProgressFactory = Callable[..., Any]


# Seconds between lines of a bar without a terminal.
LINE_EVERY = 5.0
# Waits longer than this many seconds are explained.
SLOW = 5.0


@contextmanager
def explained_if_slow(message: Callable[[], str], wanted: bool = True) -> Iterator[None]:
    """Write the message to stderr if the block takes longer than SLOW and this is `wanted`."""

    def explain() -> None:
        if sys.stderr is not None:
            tqdm.write(message(), file=sys.stderr)

    timer = threading.Timer(SLOW, explain)
    timer.daemon = True
    if wanted:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def in_notebook() -> bool:
    """Whether this process is a Jupyter kernel."""
    return "ipykernel" in sys.modules


class LineSink:
    """File-like sink for tqdm that writes complete lines, for output without a terminal."""

    def write(self, text: str) -> None:
        line = text.strip("\r\n ")
        if line and sys.stderr is not None:
            sys.stderr.write(f"{line}\n")

    def flush(self) -> None:
        if sys.stderr is not None:
            sys.stderr.flush()


def is_visible() -> bool:
    """Whether bars can be drawn: on a terminal or in a notebook."""
    return in_notebook() or (sys.stderr is not None and sys.stderr.isatty())


def download_bars(wanted: bool | ProgressFactory | None) -> ProgressFactory:
    """`progress_factory` for downloads, which may take long: None writes lines where bars cannot be
    drawn."""
    return progress_factory(True if wanted is None and not is_visible() else wanted)


def progress_factory(wanted: bool | ProgressFactory | None) -> ProgressFactory:
    """A tqdm factory; a callable is used as it is.

    None: bars on a terminal and in notebooks, which disappear when complete. True: bars stay, and
    without a terminal a line is written every few seconds. Bars of total 0 are not drawn.
    """
    if callable(wanted):
        return wanted
    visible = is_visible()
    shown = visible if wanted is None else wanted
    where: dict[str, Any] = {} if visible else {"file": LineSink(), "mininterval": LINE_EVERY}

    def bar(**options: Any) -> Any:
        idle = not shown or options.get("total") == 0
        look: dict[str, Any] = {
            "dynamic_ncols": visible,
            "leave": wanted is True,
            **where,
            **options,
        }
        return tqdm(None, disable=idle, **look)

    return bar
