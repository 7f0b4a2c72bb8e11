"""The report of a comparison: one HTML page with its pictures inside, which opens offline.

In: Results. Out: HTML text, without scripts and without anything to fetch. Must not measure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jengine.pictures import charts
from jengine.pictures.charts import Dots, Row, Series, number
from jengine.pictures.page import document, section
from jengine.research.metrics import quantiles
from jengine.research.results import (
    LOGITS,
    ContinuationResult,
    Divergence,
    PointResult,
    Results,
    shown,
)
from jengine.research.verdict import NOISE, SUSPICIOUS, Band

STYLE = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
LOOKS = {
    Band.BIT_EQUAL: "good",
    Band.WITHIN_NOISE: "good",
    Band.SUSPICIOUS: "doubtful",
    Band.WRONG: "bad",
}
# Prompt tokens shown before a continuation.
CONTEXT = 24
# Of a chart alone in its row.
FULL_WIDTH = 1140.0


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
    """Everything on the page, top to bottom."""
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


def columns_of(*parts: str) -> str:
    """Parts side by side."""
    return f'<div class="columns">{"".join(f"<div>{part}</div>" for part in parts)}</div>'


def details(content: str, name: str) -> str:
    """A part that is folded until it is opened."""
    return f"<details><summary>Show {html.escape(name)}</summary>{content}</details>"


# --- the verdict -------------------------------------------------------------------------------


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
    """The few numbers to look at first."""
    ours, peer = results.ours, results.peer
    kl = [number(quantiles(one.kl)["p50"]) for one in (ours, peer)]
    top = [f"{one.agreement[1]:.1%}" for one in (ours, peer)]
    return {
        "first tensor out of the noise": results.first_offender or "none",
        f"error of the logits by torch's (noise up to {NOISE})": shown(results.logit_ratio),
        f"median KL from the truth (torch: {kl[1]})": kl[0],
        f"same likeliest token as the truth (torch: {top[1]})": top[0],
    }


# --- pictures ----------------------------------------------------------------------------------


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
    width = charts.WIDTH if points[0].name.startswith("layers.") else FULL_WIDTH
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


# --- text --------------------------------------------------------------------------------------


def continuations(results: Results) -> str:
    """Each prompt with the three continuations."""
    if not any(one.truth for one in results.continuations):
        return "<p>No tokens were generated.</p>"
    return "".join(continuation(results, one) for one in results.continuations)


def continuation(results: Results, one: ContinuationResult) -> str:
    """One prompt with the three continuations."""
    ids = results.inputs.prompts[one.prompt]
    before = "".join(readable(results, token) for token in ids[-CONTEXT:])
    rows = [
        (results.inputs.truth_dtype + " truth", one.truth, None),
        (f"torch {results.inputs.dtype}", one.peer, one.peer_from_truth),
        (f"jengine {results.inputs.dtype}", one.ours, one.ours_from_truth),
    ]
    drawn = "".join(
        f'<div class="path"><b>{html.escape(name)}</b><code>'
        f"{''.join(path(results, tokens, one.margins, found))}</code></div>"
        for name, tokens, found in rows
    )
    leaves = leaving(one.ours_from_truth)
    ellipsis = "… " if len(ids) > CONTEXT else ""
    return (
        f'<div class="prompt"><p><b>Prompt {one.prompt}</b> '
        f"<code>{ellipsis}{html.escape(before)}</code></p>{drawn}<p>{html.escape(leaves)}</p></div>"
    )


def path(
    results: Results,
    tokens: Sequence[int],
    margins: Sequence[float],
    found: Divergence | None,
) -> Iterator[str]:
    """The tokens of one continuation; behind the first that differs, margins mean nothing."""
    for step, token in enumerate(tokens):
        word = html.escape(readable(results, token))
        if found is not None and step > found.step:
            yield f'<span class="beyond">{word}</span>'
            continue
        look = ' class="left"' if found is not None and step == found.step else ""
        share = 55 * math.exp(-margins[step])
        yield (
            f'<span{look} style="background:color-mix(in srgb,var(--tie) {share:.0f}%,transparent)"'
            f' title="step {step}, margin {number(margins[step])}">{word}</span>'
        )


def leaving(found: Divergence | None) -> str:
    """Where jengine leaves the truth's path."""
    if found is None:
        return "jengine follows the truth to the end."
    why = "a tie within the noise" if found.tie else "no tie"
    return f"jengine leaves the truth at step {found.step}: margin {number(found.margin)}, {why}."


def readable(results: Results, token: int) -> str:
    """A token on the page: its text, or its number with a space."""
    vocabulary = results.inputs.vocabulary
    return vocabulary[token].replace("\n", "⏎\n") if vocabulary else f"{token} "


def token_text(results: Results, token: int) -> str:
    """A token in a sentence."""
    return repr(results.inputs.vocabulary[token]) if results.inputs.vocabulary else str(token)


# --- tables ------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML."""
    first = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    rest = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    lines = f"<thead><tr>{first}</tr></thead><tbody>{rest}</tbody>"
    return f'<div class="wide"><table>{lines}</table></div>'


def pill(band: Band) -> str:
    """A band as a coloured word."""
    return f'<span class="pill {LOOKS[band]}">{band.label}</span>'


def logit_table(results: Results) -> str:
    """The divergences as numbers."""
    kinds = {
        "torch from the truth": results.peer,
        "jengine from the truth": results.ours,
        "jengine from torch": results.apart,
    }
    rows: list[list[str]] = []
    for name, result in kinds.items():
        kl, back = quantiles(result.kl), quantiles(result.kl_back)
        variation = quantiles(result.total_variation)
        given = quantiles(result.given_difference) if len(result.given_difference) else None
        rows.append(
            [
                html.escape(name),
                *(number(kl[key]) for key in ("mean", "p50", "p99", "max")),
                number(back["mean"]),
                number(variation["mean"]),
                "–" if given is None else number(given["mean"]),
                "–" if given is None else number(given["p99"]),
                number(float(result.rank_correlation.mean())),
                f"{result.perplexities[0]:.6g}",
            ]
        )
    head = (
        "", "KL mean", "median", "99 %", "max", "KL backwards", "total variation",
        "|Δ log p| mean", "99 %", "rank correlation", "perplexity",
    )  # fmt: skip
    return table(head, rows)


def sweep_table(results: Results) -> str:
    """Ways of computing the same, compared with each other."""
    if not results.sweeps:
        return "<p>Left out, or not possible with these prompts.</p>"
    rows = [
        [
            html.escape(sweep.name),
            html.escape(sweep.meaning),
            str(sweep.positions),
            number(sweep.relative),
            number(sweep.max_abs),
            f"{sweep.top_1:.1%}",
            number(sweep.ratios.worst),
            pill(sweep.band),
        ]
        for sweep in results.sweeps
    ]
    head = ("", "what differs", "positions", "median relative difference", "largest |Δ logit|",
            "same likeliest token", "ratio", "")  # fmt: skip
    return table(head, rows)


def point_table(results: Results) -> str:
    """Every tensor with its errors."""
    rows: list[list[str]] = []
    for point in results.points:
        row = point.summary()
        keys = ("relative", "relative_p90", "max_abs", "rms", "cosine_distance", "ulps")
        rows.append(
            [
                html.escape(point.name),
                *(f"{number(row[f'ours_{key}'])} <i>{number(row[f'torch_{key}'])}</i>"
                  for key in keys),
                *(number(value) for value in point.ratios),
                pill(point.band),
            ]
        )  # fmt: skip
    head = ("tensor", "relative, median", "relative, 90 %", "largest |Δ|", "RMS",
            "1 - cosine", "spacings", "ratio, median", "90 %", "worst", "")  # fmt: skip
    lead = (
        f"<p>jengine from the truth, <i>torch from the truth</i>. Within noise: ratios up to "
        f"{NOISE}; wrong: above {SUSPICIOUS}. '{LOGITS}' are less their mean, which changes no "
        "probability. Spacings are those of the dtype's numbers.</p>"
    )
    return lead + table(head, rows)


def environment(results: Results) -> str:
    """Versions, remarks, and the command."""
    rows = [[html.escape(key), html.escape(value)] for key, value in results.environment.items()]
    remarks = "".join(f"<li>{html.escape(note)}</li>" for note in results.notes)
    command = html.escape(results.inputs.command)
    return f"<p>To repeat it:</p><pre>{command}</pre>{table(('', ''), rows)}<ul>{remarks}</ul>"
