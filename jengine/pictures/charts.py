"""Small charts as inline SVG, without scripts, fonts or files of their own.

In: numbers and labels. Out: SVG text whose colours are CSS classes of the page around it. Must not
know what is shown.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from jengine.pictures.chart_parts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Markup,
    figure,
    grid,
    grid_below,
    legend,
    log_axis,
    mark,
    names_below,
    number,
    text,
    tip,
)

CELL_HEIGHT = 15.0
FAINTEST = 0.06
# A strip's cells differ in shade over this many times; what is smaller is as faint as can be.
SHADES = 1e4


@dataclass(frozen=True)
class Series:
    """One line of a chart. `look` is a CSS class."""

    name: str
    look: str
    values: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """One cloud of a scatter chart."""

    name: str
    look: str
    x: Sequence[float]
    y: Sequence[float]


def line_chart(
    series: Sequence[Series],
    labels: Sequence[str],
    *,
    marked: Sequence[str] = (),
    title: str,
    width: float = WIDTH,
    beside: Sequence[float] = (),
) -> Markup:
    """Lines over named places, on a logarithmic scale. Places in `marked` stand out.

    The scale has room for the values `beside` these, so that charts of one page share it.
    """
    values = [value for line in series for value in line.values]
    y = log_axis([*values, *beside], HEIGHT - BOTTOM, TOP)
    spread = max(len(labels) - 1, 1)
    xs = [LEFT + (width - LEFT - RIGHT) * index / spread for index in range(len(labels))]
    parts = [
        grid(y, right=width),
        *(mark(x) for x, label in zip(xs, labels, strict=True) if label in marked),
    ]
    parts += names_below(xs, labels, width)
    for line in series:
        parts.append(one_line(line, xs, labels, y))
    below = legend([(line.name, line.look) for line in series])
    return figure(parts, title, HEIGHT, width, below)


def one_line(line: Series, xs: Sequence[float], labels: Sequence[str], y: Axis) -> str:
    """A line with a dot at each place; infinite values and NaN are drawn at the top."""
    places = [y.place(value if math.isfinite(value) else y.high) for value in line.values]
    path = " ".join(f"{x:.1f},{place:.1f}" for x, place in zip(xs, places, strict=True))
    dots = "".join(
        f'<circle class="dot {line.look}" cx="{x:.1f}" cy="{place:.1f}" r="3">'
        f"{tip(f'{label}: {line.name} {number(value)}')}</circle>"
        for x, place, label, value in zip(xs, places, labels, line.values, strict=True)
    )
    return f'<polyline class="line {line.look}" points="{path}"/>{dots}'


def scatter(clouds: Sequence[Dots], x_name: str, y_name: str, *, title: str) -> Markup:
    """Dots in a square with its diagonal."""
    values = [value for cloud in clouds for value in (*cloud.x, *cloud.y) if math.isfinite(value)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    room = (high - low) * 0.04 or 1.0
    size = 300.0
    x = Axis(low - room, high + room, LEFT, LEFT + size)
    y = Axis(low - room, high + room, TOP + size, TOP)
    parts = [grid(y, right=LEFT + size + RIGHT), grid_below(x, TOP, TOP + size)]
    parts.append(
        f'<line class="diagonal" x1="{x.start:.1f}" y1="{y.start:.1f}" x2="{x.end:.1f}" '
        f'y2="{y.end:.1f}"/>'
    )
    for cloud in clouds:
        for a, b in zip(cloud.x, cloud.y, strict=True):
            parts.append(
                f'<circle class="cloud {cloud.look}" cx="{x.place(a):.1f}" cy="{y.place(b):.1f}" '
                f'r="3">{tip(f"{cloud.name}: {x_name} {number(a)}, {y_name} {number(b)}")}</circle>'
            )
    parts.append(text(LEFT + size / 2, TOP + size + 34, x_name, "middle"))
    parts.append(
        f'<text class="label" text-anchor="middle" transform="translate(14,{TOP + size / 2:.1f}) '
        f'rotate(-90)">{html.escape(y_name)}</text>'
    )
    below = legend([(cloud.name, cloud.look) for cloud in clouds])
    return figure(parts, title, TOP + size + 42, LEFT + size + RIGHT, below)


def bars(groups: Sequence[str], series: Sequence[Series], *, title: str) -> Markup:
    """Shares between 0 and 1 as bars, a group for each name. The axis begins near the smallest."""
    values = [value for one in series for value in one.values]
    low = min(math.floor(min(values) * 20) / 20, 0.9) if values else 0.0
    height, width = 300.0, 420.0
    y = Axis(max(low, 0.0), 1.0, height, TOP)
    parts = [grid(y, right=width, percent=True)]
    each = (width - LEFT - RIGHT) / max(len(groups), 1)
    thick = each * 0.7 / max(len(series), 1)
    for index, group in enumerate(groups):
        begin = LEFT + each * (index + 0.15)
        for place, one in enumerate(series):
            value = one.values[index]
            top = y.place(value)
            parts.append(
                f'<rect class="bar {one.look}" x="{begin + thick * place:.1f}" y="{top:.1f}" '
                f'width="{thick - 2:.1f}" height="{max(y.start - top, 0.5):.1f}" rx="2">'
                f"{tip(f'{group}, {one.name}: {value:.2%}')}</rect>"
            )
            middle = begin + thick * place + thick / 2 - 1
            parts.append(text(middle, top - 3, f"{value:.1%}", "middle", "tiny"))
        parts.append(text(begin + each * 0.35, height + 16, group, "middle"))
    below = legend([(one.name, one.look) for one in series])
    return figure(parts, title, height + BOTTOM, width, below)


@dataclass(frozen=True)
class Row:
    """One row of a strip: a number and a tooltip per cell."""

    label: str
    look: str
    values: Sequence[float]
    tips: Sequence[str]


def strip(rows: Sequence[Row], *, title: str, unit: str) -> Markup:
    """Rows of cells, the darker the larger, on a logarithmic scale."""
    positive = [value for row in rows for value in row.values if 0 < value < math.inf]
    most = max(positive, default=1.0)
    scale = Axis(most / SHADES, most, FAINTEST, 1.0, log=True)
    longest = max((len(row.values) for row in rows), default=1)
    left = 120.0
    width = 900.0
    cell = min((width - left - RIGHT) / max(longest, 1), 16.0)
    parts = []
    for number_, row in enumerate(rows):
        top = TOP + number_ * (CELL_HEIGHT + 3)
        parts.append(text(left - 8, top + CELL_HEIGHT - 4, row.label, "end"))
        for index, value in enumerate(row.values):
            shade = scale.place(value) if math.isfinite(value) else 1.0
            parts.append(
                f'<rect class="cell {row.look}" x="{left + cell * index:.2f}" y="{top:.1f}" '
                f'width="{max(cell - 0.6, 0.5):.2f}" height="{CELL_HEIGHT:.0f}" '
                f'fill-opacity="{shade:.3f}">{tip(row.tips[index])}</rect>'
            )
    height = TOP + len(rows) * (CELL_HEIGHT + 3) + 4
    scale_text = f"faint: {number(scale.low)} {unit} or less, full: {number(scale.high)} {unit}"
    below = f'<p class="legend">{html.escape(scale_text)}</p>'
    return figure(parts, title, height, width, below)
