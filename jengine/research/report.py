"""The report of a comparison: one HTML page with its pictures inside, which opens offline.

In: Results. Out: HTML text, without scripts and without anything to fetch. Must not measure.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jengine.pictures import charts
from jengine.pictures.chart_parts import WIDTH, Markup, number
from jengine.pictures.charts import Dots, Row, Series
from jengine.pictures.page import Columns, Figure, Part, Section, as_html, document
from jengine.research.metrics import quantiles
from jengine.research.report_tables import (
    LOOKS,
    logit_table,
    made,
    point_table,
    sweep_table,
)
from jengine.research.report_text import continuations, token_text
from jengine.research.results import (
    PointResult,
    Results,
    shown,
)
from jengine.research.verdict import NOISE

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def page(results: Results) -> str:
    """The whole document."""
    title = f"{results.band.label}: {results.inputs.model}"
    return document(title, *body(results), style=STYLE)


def framed(results: Results) -> str:
    """The page for a notebook's cell, in a frame so that styles stay apart."""
    return (
        f'<iframe srcdoc="{html.escape(page(results))}" style="width:100%;height:820px;'
        'border:1px solid #8884;border-radius:8px" title="comparison"></iframe>'
    )


def body(results: Results) -> Iterator[Part]:
    """The page's contents."""
    yield header(results)
    yield Section("Where errors arise", LAYERS_TEXT, *layer_charts(results))
    yield Section("Divergence at every position", STRIP_TEXT, kl_strip(results))
    yield Section(
        "Same favourites, same confidence", AGREEMENT_TEXT,
        Columns(agreement_bars(results), calibration(results)),
    )  # fmt: skip
    yield Section("Distributions", logit_table(results))
    yield Section("Greedy decoding", GREEDY_TEXT, continuations(results))
    yield Section("jengine against itself", SWEEP_TEXT, sweep_table(results))
    yield Section("Every tensor", details("Show the table", *point_table(results)))
    inputs = results.inputs
    yield Section("How it was made", *made(inputs.command, results.environment, results.notes))


LAYERS_TEXT = (
    "Relative error of each tensor against the truth, |x - truth| / |truth|, at the median "
    "position; zeros are drawn on the lowest line. The three charts share one scale. The question "
    "is whether jengine is above torch."
)
STRIP_TEXT = "KL(truth || run) after each token of each prompt, in nats. Rest on a cell to read it."
AGREEMENT_TEXT = (
    "Left: how much of the k likeliest tokens a run shares with the truth. Right: log p of every "
    "given token; on the diagonal both agree."
)
GREEDY_TEXT = (
    "What each of the three continues with. The darker a token's background, the nearer the truth "
    "was to a tie there; the first token that leaves the truth's path is framed."
)
SWEEP_TEXT = (
    "The same tokens computed in another way. The difference is judged like an error: by how far "
    "torch is from the truth."
)


def details(summary: str, *parts: Part) -> Markup:
    """Parts that are shown on demand."""
    return Markup(f"<details><summary>{summary}</summary>{as_html(*parts)}</details>")


def header(results: Results) -> Markup:
    """The verdict, and the figures behind it."""
    inputs = results.inputs
    tokens = sum(map(len, inputs.prompts))
    about = (
        f"{inputs.model} ({inputs.architecture}), {inputs.dtype} against a {inputs.truth_dtype} "
        f"truth, {len(inputs.prompts)} prompts with {tokens} tokens"
    )
    tiles = "".join(
        f'<div class="tile"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for name, value in figures(results).items()
    )
    _, _, sentence = results.verdict.partition(": ")
    return Markup(
        f'<header><p class="band {LOOKS[results.band]}">{results.band.label}</p>'
        f"<h1>{html.escape(sentence)}</h1><p>{html.escape(about)}</p>"
        f'<div class="tiles">{tiles}</div></header>'
    )


def figures(results: Results) -> Mapping[str, str]:
    """Tile label -> value, for the tiles under the headline."""
    ours, peer = results.ours, results.peer
    kl = [number(quantiles(one.kl)["p50"]) for one in (ours, peer)]
    top = [f"{one.agreement[1]:.1%}" for one in (ours, peer)]
    return {
        "first tensor out of the noise": results.first_offender or "none",
        f"error of the logits by torch's (noise up to {NOISE})": shown(results.logit_ratio),
        f"median KL from the truth (torch: {kl[1]})": kl[0],
        f"same likeliest token as the truth (torch: {top[1]})": top[0],
    }


# Of a chart alone in its row.
FULL_WIDTH = 1140.0


def layer_charts(results: Results) -> Iterator[Part]:
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
        Figure(title, layer_chart(some, title, results, values))
        for title, some in wanted.items()
        if some
    )
    yield from (first, Columns(*others))


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
) -> Markup:
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


def kl_strip(results: Results) -> Markup:
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


def agreement_bars(results: Results) -> Markup:
    """Bars for the likeliest 1, 5 and 20 tokens."""
    groups = [f"top {k}" for k in results.ours.agreement]
    series = [
        Series("torch with the truth", "torch", list(results.peer.agreement.values())),
        Series("jengine with the truth", "ours", list(results.ours.agreement.values())),
    ]
    return charts.bars(groups, series, title="agreement of the likeliest tokens")


def calibration(results: Results) -> Markup:
    """log p of the given tokens: torch's and jengine's."""
    given = results.given
    cloud = Dots("a given token", "ours", list(given["torch"]), list(given["ours"]))
    return charts.scatter(
        [cloud], "log p, torch", "log p, jengine", title="log-probabilities of the given tokens"
    )
