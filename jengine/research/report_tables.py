"""The tables of a comparison's report.

In: Results. Out: parts of a page. Must not measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jengine.pictures.chart_parts import Markup, number
from jengine.pictures.page import Items, Part, Table, Verbatim
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


def pill(band: Band) -> Markup:
    """A band as a coloured word."""
    return Markup(f'<span class="pill {LOOKS[band]}">{band.label}</span>')


def logit_table(results: Results) -> Table:
    """The divergences as numbers."""
    kinds = {
        "torch from the truth": results.peer,
        "jengine from the truth": results.ours,
        "jengine from torch": results.apart,
    }
    rows = []
    for name, result in kinds.items():
        kl, back = quantiles(result.kl), quantiles(result.kl_back)
        variation = quantiles(result.total_variation)
        given = quantiles(result.given_difference) if len(result.given_difference) else None
        rows.append(
            [
                name,
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
    return Table(head, rows)


def sweep_table(results: Results) -> Part:
    """Table of the sweeps: the same tokens, computed in different ways."""
    if not results.sweeps:
        return "Left out, or not possible with these prompts."
    rows = [
        [
            sweep.name,
            sweep.meaning,
            sweep.positions,
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
    return Table(head, rows)


def point_table(results: Results) -> Iterator[Part]:
    """Every tensor with its errors."""
    rows = []
    for point in results.points:
        row = point.summary()
        keys = ("relative", "relative_p90", "max_abs", "rms", "cosine_distance", "ulps")
        rows.append(
            [
                point.name,
                *(Markup(f"{number(row[f'ours_{key}'])} <i>{number(row[f'torch_{key}'])}</i>")
                  for key in keys),
                *(number(value) for value in point.ratios),
                pill(point.band),
            ]
        )  # fmt: skip
    head = ("tensor", "relative, median", "relative, 90 %", "largest |Δ|", "RMS",
            "1 - cosine", "spacings", "ratio, median", "90 %", "worst", "")  # fmt: skip
    yield Markup(
        f"<p>jengine from the truth, <i>torch from the truth</i>. Within noise: ratios up to "
        f"{NOISE}; wrong: above {SUSPICIOUS}. '{LOGITS}' are less their mean, which changes no "
        "probability. Spacings are those of the dtype's numbers.</p>"
    )
    yield Table(head, rows)


def made(
    command: str, environment: Mapping[str, str], remarks: Sequence[str] = ()
) -> Iterator[Part]:
    """The command, versions, and remarks."""
    yield from ("To repeat it:", Verbatim(command), Table((), environment.items()))
    if remarks:
        yield Items(remarks)
