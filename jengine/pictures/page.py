"""An HTML page that opens offline: its style and its charts are inside.

In: words, numbers and HTML parts. Out: HTML text, without scripts and without anything to fetch.
Must not know what is shown.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jengine.pictures.charts import Series, line_chart

# Colours and shapes of `jengine.pictures.charts`, and of the plain parts around them.
STYLE = (Path(__file__).parent / "charts.css").read_text(encoding="utf-8")
LOOKS = ("ours", "second", "apart")


def document(title: str, content: str, style: str = "") -> str:
    """The whole document; `style` is CSS beyond that of charts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{content}</main></body></html>\n"
    )


def section(title: str, content: str, text: str = "") -> str:
    """Return a section of the page."""
    lead = f"<p>{html.escape(text)}</p>" if text else ""
    return f"<section><h2>{html.escape(title)}</h2>{lead}{content}</section>"


def report(
    title: str,
    texts: Iterable[str],
    charts: Iterable[str],
    *,
    above: Iterable[str] = (),
    below: Iterable[str] = (),
    name: str | None = None,
) -> str:
    """A page about figures: headline, what is said under it, charts two to a row where there is
    room, sections around them. `name` is the window's title if that is shorter."""
    said = "".join(f"<p>{html.escape(text)}</p>" for text in texts)
    head = f"<header><h1>{html.escape(title)}</h1>{said}</header>"
    columns = "".join(f"<div>{chart}</div>" for chart in charts if chart)
    content = [head, *above, f'<div class="columns">{columns}</div>', *below]
    return document(name or title, "".join(content))


def curves(
    title: str, lead: str, lines: Mapping[str, Sequence[float]], labels: Sequence[str]
) -> str:
    """A section with a line for each of up to three names."""
    series = [
        Series(name, look, list(values))
        for (name, values), look in zip(lines.items(), LOOKS, strict=False)
    ]
    return section(title, line_chart(series, labels, title=title), lead)


def as_written(title: str, text: str, lead: str = "") -> str:
    """A section with text as a terminal shows it."""
    return section(title, f"<pre>{html.escape(text)}</pre>", lead)


def write(page: str, file: Path) -> Path:
    """Write a page, and its folder where there is none; returns its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page, encoding="utf-8")
    return file
