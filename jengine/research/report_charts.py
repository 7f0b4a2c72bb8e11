"""The charts of a comparison's report.

In: Results. Out: HTML with inline SVG. Must not measure.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from jengine.pictures import charts
from jengine.pictures.chart_parts import WIDTH, number
from jengine.pictures.charts import Dots, Row, Series
from jengine.research.metrics import quantiles
from jengine.research.report_text import token_text
from jengine.research.results import (
    PointResult,
    Results,
)

# Of a chart alone in its row.
FULL_WIDTH = 1140.0


def columns_of(*parts: str) -> str:
    """Parts side by side."""
    return f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def layer_charts(results: Results) -> str:
    """The residual stream, and what attention and MLP add to it."""
    points = results.points
    wanted = {
        "Residual stream, from the embedding to the logits": [
            point for point in points if not point.name.endswith((".attention", ".mlp"))
        ],
        "What attention adds": [p for p in points if p.name.endswith(".attention")],
        "What the MLP adds": [p for p in points if p.name.endswith(".mlp")],
    }
    # One scale for all of them: what attention adds can be compared with what it is added to.
    values = [value for line in layer_lines(points, results) for value in line.values]
    first, *others = (
        f"<h3>{html.escape(title)}</h3>{layer_chart(some, title, results, values)}"
        for title, some in wanted.items()
        if some
    )
    return first + columns_of(*others)


def layer_lines(points: Sequence[PointResult], results: Results) -> list[Series]:
    """Errors of torch and of jengine against the truth, and the difference between the two."""
    dtype = results.inputs.dtype
    names = {
        f"torch {dtype} from the truth": ("torch", "peer"),
        f"jengine {dtype} from the truth": ("ours", "ours"),
        "jengine from torch": ("apart", "apart"),
    }
    return [
        Series(name, look, [quantiles(getattr(p, field).relative)["p50"] for p in points])
        for name, (look, field) in names.items()
    ]


def layer_chart(
    points: Sequence[PointResult], title: str, results: Results, beside: Sequence[float]
) -> str:
    """The three lines over these points, on a scale that also has room for `beside`."""
    offender = results.first_offender
    labels = [short_name(point.name) for point in points]
    # The offender itself, and its layer in the residual stream.
    output = f"layers.{short_name(offender)}.output" if offender else ""
    marked = [short_name(p.name) for p in points if p.name in (offender, output)]
    width = WIDTH if points[0].name.startswith("layers.") else FULL_WIDTH
    series = layer_lines(points, results)
    return charts.line_chart(series, labels, marked=marked, title=title, width=width, beside=beside)


def short_name(point: str) -> str:
    """layers.3.output -> 3."""
    return point.split(".")[1] if point.startswith("layers.") else point


def kl_strip(results: Results) -> str:
    """Two rows per prompt: torch and jengine."""
    rows: list[Row] = []
    begin = 0
    for prompt, ids in enumerate(results.inputs.prompts):
        end = begin + len(ids)
        for who, look, result in (("torch", "torch", results.peer),
                                  ("jengine", "ours", results.ours)):  # fmt: skip
            values = [float(value) for value in result.kl[begin:end]]
            tips = [
                f"prompt {prompt}, position {at}, after {token_text(results, token)}: "
                f"{who} {number(value)} nats"
                for at, (token, value) in enumerate(zip(ids, values, strict=True))
            ]
            rows.append(Row(f"prompt {prompt}, {who}", look, values, tips))
        begin = end
    return charts.strip(rows, title="KL divergence at every position", unit="nats")


def agreement_bars(results: Results) -> str:
    """Bars for the likeliest 1, 5 and 20 tokens."""
    groups = [f"top {k}" for k in results.ours.agreement]
    series = [
        Series("torch with the truth", "torch", list(results.peer.agreement.values())),
        Series("jengine with the truth", "ours", list(results.ours.agreement.values())),
    ]
    return charts.bars(groups, series, title="agreement of the likeliest tokens")


def calibration(results: Results) -> str:
    """log p of the given tokens: torch's and jengine's."""
    given = results.given
    cloud = Dots("a given token", "ours", list(given["torch"]), list(given["ours"]))
    return charts.scatter(
        [cloud], "log p, torch", "log p, jengine", title="log-probabilities of the given tokens"
    )
