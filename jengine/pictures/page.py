"""A page described once: as HTML that opens offline, and as Markdown.

In: words, numbers, tables and charts. Out: text; as HTML without scripts and without anything to
fetch. Must not know what is shown.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jengine.pictures.chart_parts import Markup
from jengine.pictures.charts import Series, line_chart

# Colours and shapes of `jengine.pictures.charts`, and of the plain parts around them.
STYLE = (Path(__file__).parent / "charts.css").read_text(encoding="utf-8")
BAR = "\\|"  # in Markdown
LOOKS = ("ours", "second", "apart")


class Table(NamedTuple):
    """Cells are text, numbers or Markup; in Markdown they may hold what it knows within a line."""

    head: Sequence[str]  # empty: none, in HTML
    rows: Iterable[Sequence[Any]]


class Verbatim(NamedTuple):
    """Text as a terminal shows it."""

    text: str


class Items(NamedTuple):
    items: Iterable[str]


class Figure(NamedTuple):
    caption: str
    chart: Markup


class Section:
    def __init__(self, title: str, *parts: Part) -> None:
        self.title, self.parts = title, parts


class Columns:
    """Parts beside each other where there is room."""

    def __init__(self, *parts: Part) -> None:
        self.parts = parts


# Plain text is a paragraph.
Part = str | Markup | Table | Verbatim | Items | Figure | Section | Columns


def as_html(*parts: Part) -> Markup:
    return Markup("".join(map(_html, parts)))


def _html(part: Part) -> str:
    match part:
        case Table():
            head = f"<thead>{_row(part.head, 'th')}</thead>" if part.head else ""
            body = "".join(_row(row, "td") for row in part.rows)
            return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
        case Verbatim():
            return f"<pre>{html.escape(part.text)}</pre>"
        case Items():
            return f"<ul>{''.join(f'<li>{_escaped(item)}</li>' for item in part.items)}</ul>"
        case Figure():
            return f"<h3>{html.escape(part.caption)}</h3>{part.chart}"
        case Section():
            return f"<section><h2>{html.escape(part.title)}</h2>{as_html(*part.parts)}</section>"
        case Columns():
            columns = "".join(f"<div>{_html(one)}</div>" for one in part.parts)
            return f'<div class="columns">{columns}</div>'
        case Markup():
            return part
    return f"<p>{html.escape(part)}</p>"


def _row(cells: Sequence[Any], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{_escaped(cell)}</{tag}>' for cell in cells)}</tr>"


def _escaped(cell: Any) -> str:
    return cell if isinstance(cell, Markup) else html.escape(str(cell))


def as_markdown(*parts: Part) -> str:
    return "\n\n".join(map(_markdown, parts))


def _markdown(part: Part) -> str:
    match part:
        case Table():
            lines = [_line(part.head), "|---" * len(part.head) + "|", *map(_line, part.rows)]
            return "\n".join(lines)
        case Verbatim():
            return f"```\n{part.text}\n```"
        case Items():
            return "\n".join(f"- {item}" for item in part.items)
        case Figure():
            return as_markdown(f"**{part.caption}**", part.chart)
        case Section():
            return as_markdown(f"## {part.title}", *part.parts)
        case Columns():
            return as_markdown(*part.parts)
    return part  # Markdown may hold HTML


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell).replace('|', BAR) for cell in cells)} |"


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """A table for a terminal, a line per row: the first column to the left, others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])])
        for first, *rest in rows
    ]


def report(
    title: str, texts: Iterable[str], *parts: Part, name: str | None = None, style: str = ""
) -> str:
    """A page about figures: headline, what is said under it, and parts. `name` is the window's
    title if that is shorter."""
    head = as_html(Markup(f"<h1>{html.escape(title)}</h1>"), *texts)
    return document(name or title, Markup(f"<header>{head}</header>"), *parts, style=style)


def document(title: str, *parts: Part, style: str = "") -> str:
    """The whole document; `style` is CSS beyond that of charts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{as_html(*parts)}</main></body></html>\n"
    )


def curves(
    title: str, lead: str, lines: Mapping[str, Sequence[float]], labels: Sequence[str]
) -> Section:
    """A section with a line for each of up to three names."""
    series = [
        Series(name, look, list(values))
        for (name, values), look in zip(lines.items(), LOOKS, strict=False)
    ]
    return Section(title, lead, line_chart(series, labels, title=title))


def write(page: str, file: Path) -> Path:
    """Write a page, and its folder where there is none; returns its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file
