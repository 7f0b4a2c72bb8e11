"""A bar chart of throughput ratios to peers, as a self-contained SVG.

In: what was measured, in words, and the ratios. Out: SVG, for a README, in
the reader's light or dark colours. Must not calculate what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, LABELS, ROW, TOP = 800, 280, 34, 40
BEYOND = " →"  # behind the ratio of a bar that would be longer
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b2330}.head{font-weight:650;font-size:15px}"
    ".soft{fill:#5a6576;font-size:11px}.ours{fill:#2563eb}.peer{fill:#d97706}"
    "line{stroke:#5a6576;stroke-dasharray:4 4}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.soft{fill:#9aa5b5}.ours{fill:#6ea0ff}"
    ".peer{fill:#f2a33c}}"
)


class Compared(NamedTuple):
    """Label, speeds as text, and jengine's ratio to the peer."""

    work: str
    speeds: str
    ratio: float


def ratio_chart(title: str, results: Sequence[Compared], most: float = 2.5) -> str:
    """Draw the chart. Bars are clipped at `most` but labelled with the true ratio; a line marks
    1."""
    unit = (WIDTH - LABELS - 70) / most
    height = TOP + ROW * len(results) + 8
    parts = [f'<text class="head" x="0" y="18">{escape(title)}</text>']
    for index, one in enumerate(results):
        y = TOP + ROW * index
        end = LABELS + unit * min(one.ratio, most)
        parts += [
            f'<text x="0" y="{y + 11}">{escape(one.work)}</text>',
            f'<text class="soft" x="0" y="{y + 26}">{escape(one.speeds)}</text>',
            f'<rect class="{"ours" if one.ratio >= 1 else "peer"}" x="{LABELS}" y="{y + 2}" '
            f'width="{end - LABELS:.1f}" height="18" rx="3"/>',
            f'<text x="{end + 6:.1f}" y="{y + 16}">{one.ratio:.2f}'
            f"{BEYOND if one.ratio > most else ''}</text>",
        ]
    peer = LABELS + unit
    parts.append(f'<line x1="{peer:.1f}" y1="{TOP - 8}" x2="{peer:.1f}" y2="{height}"/>')
    parts.append(f'<text class="soft" x="{peer + 4:.1f}" y="{TOP - 8}">peer</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>{''.join(parts)}</svg>\n"
    )
