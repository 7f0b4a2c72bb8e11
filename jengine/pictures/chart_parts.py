"""The parts of charts: axes, grids, labels, legends, and the SVG element around them.

In: numbers and labels. Out: SVG text whose colours are CSS classes. Must not know charts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

# The size of a chart in SVG units; the page scales it.
WIDTH, HEIGHT = 640.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 24.0, 12.0, 34.0
# Labels below a chart take about this much room each.
LABEL_WIDTH = 44.0


class Markup(str):
    """HTML that stands in a page as it is; all other text is escaped."""


@dataclass(frozen=True)
class Axis:
    """Maps values to coordinates; on a log axis zeros are placed at the low end."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """The coordinate of a value."""
        if not self.log:
            share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        elif value <= 0:
            share = 0.0
        else:
            low, high = math.log10(self.low), math.log10(self.high)
            share = (math.log10(min(max(value, self.low), self.high)) - low) / (high - low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round values to write at the axis."""
        if self.log:
            first, last = (
                math.ceil(math.log10(self.low) - 1e-9),
                math.floor(math.log10(self.high) + 1e-9),
            )
            every = max(1, math.ceil((last - first + 1) / 7))
            return [10.0**power for power in range(first, last + 1, every)]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        first = math.ceil(self.low / step)
        return [step * number for number in range(first, math.floor(self.high / step) + 1)]


def log_axis(values: Sequence[float], start: float, end: float) -> Axis:
    """An axis of whole powers of ten around the values."""
    positive = [value for value in values if 0 < value < math.inf]
    low, high = (min(positive), max(positive)) if positive else (1e-3, 1.0)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return Axis(10.0**first, 10.0 ** max(last, first + 1), start, end, log=True)


def grid(y: Axis, *, right: float = WIDTH, percent: bool = False) -> str:
    """Horizontal lines with their values."""
    parts = []
    for tick in y.ticks():
        place = y.place(tick)
        name = f"{tick:.0%}" if percent else number(tick)
        parts.append(
            f'<line class="grid" x1="{LEFT}" y1="{place:.1f}" x2="{right - RIGHT:.1f}" '
            f'y2="{place:.1f}"/>{text(LEFT - 6, place + 4, name, "end")}'
        )
    return "".join(parts)


def grid_below(x: Axis, top: float, bottom: float) -> str:
    """Vertical lines with their values."""
    return "".join(
        f'<line class="grid" x1="{x.place(tick):.1f}" y1="{top}" x2="{x.place(tick):.1f}" '
        f'y2="{bottom}"/>{text(x.place(tick), bottom + 16, number(tick), "middle")}'
        for tick in x.ticks()
    )


def names_below(xs: Sequence[float], labels: Sequence[str], width: float) -> list[str]:
    """Labels under an axis, thinned out where there are too many."""
    room = (width - LEFT - RIGHT) / LABEL_WIDTH
    every = max(1, math.ceil(len(labels) / room))
    last = len(labels) - 1
    shown = [i for i in range(len(labels)) if i == last or (i % every == 0 and last - i >= every)]
    return [text(xs[index], HEIGHT - BOTTOM + 18, labels[index], "middle") for index in shown]


def mark(x: float) -> str:
    """A highlighted place."""
    return f'<line class="mark" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>'


def text(x: float, y: float, words: str, anchor: str, look: str = "label") -> str:
    """Return text at a point."""
    return (
        f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
        f"{html.escape(words)}</text>"
    )


def tip(words: str) -> str:
    """A tooltip."""
    return f"<title>{html.escape(words)}</title>"


def figure(
    parts: Sequence[str], title: str, height: float, width: float = WIDTH, below: str = ""
) -> Markup:
    """The parts as an SVG picture with an accessible name, and HTML below it."""
    return Markup(
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'style="max-width:{width:.0f}px" aria-label="{html.escape(title)}">'
        f"{''.join(parts)}</svg>{below}"
    )


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Names with their colours; nothing for one alone, which the chart's title names."""
    if len(entries) == 1:
        return ""
    items = "".join(
        f'<span><i class="key {look}"></i>{html.escape(name)}</span>' for name, look in entries
    )
    return f'<p class="legend">{items}</p>'


def number(value: float) -> str:
    """Format a number in few characters."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 1e-3:
        return f"{value:.3g}"
    return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")
