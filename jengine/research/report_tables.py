"""The tables of a comparison's report.

In: Results. Out: HTML. Must not measure.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from jengine.pictures.chart_parts import number
from jengine.research.metrics import quantiles
from jengine.research.results import (
    LOGITS,
    Results,
)
from jengine.research.verdict import NOISE, SUSPICIOUS, Band

LOOKS = {
    Band.BIT_EQUAL: "good",
    Band.WITHIN_NOISE: "good",
    Band.SUSPICIOUS: "doubtful",
    Band.WRONG: "bad",
}


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
    """Table of the sweeps: the same tokens, computed in different ways."""
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
