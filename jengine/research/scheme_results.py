"""What configurations of one model cost, as users hold it: rows, JSON, a page.

In: measurements. Out: the same in other forms. Must not measure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jengine.pictures import charts
from jengine.pictures.chart_parts import WIDTH, number
from jengine.pictures.charts import Series
from jengine.pictures.page import Columns, Figure, Section, Table, report
from jengine.research.metrics import quantiles
from jengine.research.report_tables import made

SHARES = (0.5, 0.9, 0.99, 1.0)
SHARE_NAMES = ("median", "90 %", "99 %", "largest")
CHART_TEXT = (
    "KL(truth || configuration) after each token, in nats, at some shares of all positions; zeros "
    "are drawn on the lowest line. All charts share one scale."
)


# The configuration that others are as fast as, or not.
PLAIN = "--dtype bfloat16"


@dataclass(frozen=True)
class SchemeResult:
    """One configuration against the truth."""

    name: str
    weight_bytes: int
    cache_bytes_per_token: float
    tokens_per_second: float | None  # of one request
    perplexity: float
    kl: tuple[float, ...]  # KL(truth || this) at every position
    agreement: Mapping[int, float]
    given_difference: float  # mean |difference of log p| of the given tokens

    def summary(self) -> dict[str, Any]:
        """One row of the table, as JSON types."""
        return {
            "name": self.name,
            "weight_bytes": self.weight_bytes,
            "cache_bytes_per_token": self.cache_bytes_per_token,
            "tokens_per_second": self.tokens_per_second,
            "perplexity": self.perplexity if math.isfinite(self.perplexity) else None,
            "kl": quantiles(np.asarray(self.kl)),
            "agreement": {f"top_{count}": share for count, share in self.agreement.items()},
            "given_logprob_difference": self.given_difference,
        }


@dataclass(frozen=True)
class SchemeComparison:
    """A model's configurations compared with the first, the reference."""

    model: str
    prompts: int
    tokens: int
    truth: str
    schemes: tuple[SchemeResult, ...]
    command: str
    environment: Mapping[str, str]

    def scheme(self, name: str) -> SchemeResult:
        return next(one for one in self.schemes if one.name == name)

    def rows(self) -> list[list[str]]:
        """The table, its head first."""
        timed = any(one.tokens_per_second is not None for one in self.schemes)
        head = ["configuration", "weights", "cache per token", "KL mean", "99 %", "largest",
                "top 1", "perplexity", *(["tok/s", "of plain"] if timed else [])]  # fmt: skip
        found = [head]
        for one in self.schemes:
            kl = quantiles(np.asarray(one.kl))
            speed = self._speed(one)
            found.append([
                one.name, f"{one.weight_bytes / 1e6:,.1f} MB",
                f"{one.cache_bytes_per_token:,.0f} B",
                *(number(kl[key]) for key in ("mean", "p99", "max")),
                f"{one.agreement[1]:.2%}", f"{one.perplexity:.6g}", *speed,
            ])  # fmt: skip
        return found

    @property
    def plain_speed(self) -> float | None:
        """Tokens a second of the model in bfloat16, else of the first that was timed."""
        timed = {one.name: one.tokens_per_second for one in self.schemes if one.tokens_per_second}
        return timed.get(PLAIN, next(iter(timed.values()), None))

    def _speed(self, one: SchemeResult) -> list[str]:
        """Tokens a second, and how many times those of the plain model; empty if not timed."""
        plain = self.plain_speed
        if one.tokens_per_second is None or plain is None:
            return []
        return [f"{one.tokens_per_second:.1f}", f"{one.tokens_per_second / plain:.2f}"]

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON types, without those of single positions."""
        return {
            "model": self.model,
            "prompts": self.prompts,
            "tokens": self.tokens,
            "truth": self.truth,
            "schemes": [one.summary() for one in self.schemes],
            "command": self.command,
            "environment": dict(self.environment),
        }

    def save_json(self, file: str | Path, surroundings: Mapping[str, Any]) -> None:
        """Write `to_json` to a file, with where it was measured, as kept results have it."""
        found = {"bench": "schemes", **surroundings, **self.to_json()}
        text = json.dumps(found, ensure_ascii=False, indent=1)
        Path(file).write_text(text + "\n", encoding="utf-8")

    def save_report(self, file: str | Path) -> None:
        """Write the page with pictures, which opens offline."""
        Path(file).write_text(page(self), encoding="utf-8")


def page(found: SchemeComparison) -> str:
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    head, *rows = found.rows()
    about = (
        f"{found.model}: {found.prompts} prompts with {found.tokens} tokens, against {found.truth}"
    )
    return report(
        "What each configuration costs", [about],
        Section("Size and distance", Table(head, rows)),
        Section("Divergence", CHART_TEXT, Columns(*kl_charts(found))),
        Section("How it was made", *made(found.command, found.environment)),
        name=f"configurations of {found.model}", style=style,
    )  # fmt: skip


def kl_charts(found: SchemeComparison) -> list[Figure]:
    """One chart for each configuration but the truth."""
    others = [one for one in found.schemes if one.name != found.truth]
    drawn = {one.name: [float(np.quantile(one.kl, at)) for at in SHARES] for one in others}
    everything = [value for values in drawn.values() for value in values]
    return [
        Figure(name, charts.line_chart(
            [Series("KL from the truth", "ours", values)], SHARE_NAMES,
            title=f"KL of {name}", width=WIDTH, beside=everything,
        ))
        for name, values in drawn.items()
    ]  # fmt: skip
