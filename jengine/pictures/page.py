"""An HTML page that opens offline: its style and its charts are inside.

In: HTML parts. Out: HTML text, without scripts and without anything to fetch. Must not know what
is shown.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

# Colours and shapes of `jengine.pictures.charts`, and of the plain parts around them.
STYLE = (Path(__file__).parent / "charts.css").read_text(encoding="utf-8")


def document(title: str, content: str, style: str = "") -> str:
    """The whole document; `style` is CSS beyond that of charts."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}{style}</style></head>"
        f"<body><main>{content}</main></body></html>\n"
    )


def section(title: str, content: str, text: str = "") -> str:
    """One part of the page."""
    lead = f"<p>{html.escape(text)}</p>" if text else ""
    return f"<section><h2>{html.escape(title)}</h2>{lead}{content}</section>"


def header(title: str, *texts: str) -> str:
    """The page's headline, and what is said below it."""
    below = "".join(f"<p>{html.escape(text)}</p>" for text in texts)
    return f"<header><h1>{html.escape(title)}</h1>{below}</header>"


def columns(parts: Iterable[str]) -> str:
    """Parts beside each other, two to a row where the window is wide enough."""
    return f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts if part)}</div>'
