"""The report of a comparison: one HTML page with its pictures inside, which opens offline.

In: Results. Out: HTML text, without scripts and without anything to fetch. Must not measure.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path

from jengine.pictures.chart_parts import number
from jengine.pictures.page import document, section
from jengine.research.metrics import quantiles
from jengine.research.report_charts import (
    agreement_bars,
    calibration,
    columns_of,
    kl_strip,
    layer_charts,
)
from jengine.research.report_tables import (
    LOOKS,
    environment,
    logit_table,
    point_table,
    sweep_table,
)
from jengine.research.report_text import continuations
from jengine.research.results import (
    Results,
    shown,
)
from jengine.research.verdict import NOISE

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def page(results: Results) -> str:
    """The whole document."""
    return document(f"{results.band.label}: {results.inputs.model}", body(results), STYLE)


def framed(results: Results) -> str:
    """The page for a notebook's cell, in a frame so that styles stay apart."""
    return (
        f'<iframe srcdoc="{html.escape(page(results))}" style="width:100%;height:820px;'
        'border:1px solid #8884;border-radius:8px" title="comparison"></iframe>'
    )


def body(results: Results) -> str:
    """The page's contents."""
    parts = [
        header(results),
        section("Where errors arise", layer_charts(results), LAYERS_TEXT),
        section("Divergence at every position", kl_strip(results), STRIP_TEXT),
        section(
            "Same favourites, same confidence",
            columns_of(agreement_bars(results), calibration(results)),
            AGREEMENT_TEXT,
        ),
        section("Distributions", logit_table(results)),
        section("Greedy decoding", continuations(results), GREEDY_TEXT),
        section("jengine against itself", sweep_table(results), SWEEP_TEXT),
        section("Every tensor", details(point_table(results), "the table")),
        section("How it was made", environment(results)),
    ]
    return "".join(parts)


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


def details(content: str, name: str) -> str:
    """A part that is folded until it is opened."""
    return f"<details><summary>Show {html.escape(name)}</summary>{content}</details>"


def header(results: Results) -> str:
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
    return (
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
