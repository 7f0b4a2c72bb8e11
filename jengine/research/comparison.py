"""The result of a comparison, as users hold it: a verdict, tables, JSON, a page, a notebook cell.

In: Results. Out: the same in other forms. Must not know how it was measured.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jengine.errors import ConfigError
from jengine.research.report import framed, page
from jengine.research.results import LOGITS, Divergence, Results
from jengine.research.verdict import NOISE, SUSPICIOUS

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. As the last line of a notebook cell it shows its report."""

    results: Results

    @property
    def verdict(self) -> str:
        """The headline of the report."""
        return self.results.verdict

    @property
    def passed(self) -> bool:
        """Whether nothing is suspicious or wrong."""
        return self.results.passed

    @property
    def first_offender(self) -> str | None:
        """The first tensor, in the order of computation, that is not within torch's noise."""
        return self.results.first_offender

    def __repr__(self) -> str:
        return f"<Comparison: {self.verdict}>"

    def _repr_html_(self) -> str:
        return framed(self.results)

    def columns(self, table: str = "points") -> dict[str, list[Any]]:
        """A table as lists: points, positions, continuations or sweeps."""
        if table not in TABLES:
            raise ConfigError(f"table={table!r}: expected one of {', '.join(TABLES)}.")
        rows = TABLES[table](self.results)
        return {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}

    def to_frame(self, table: str = "points") -> Any:
        """Return a table as a pandas DataFrame. Needs pandas."""
        columns = self.columns(table)
        if importlib.util.find_spec("pandas") is None:
            raise ConfigError(
                "to_frame needs pandas, which is not installed: pip install pandas, or use "
                f"columns({table!r}), which gives the same as lists."
            )
        return importlib.import_module("pandas").DataFrame(columns)

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON types, without tensors."""
        found = self.results
        return finite(
            {
                "verdict": found.verdict,
                "band": found.band.label,
                "passed": found.passed,
                "first_offender": found.first_offender,
                "logit_ratio": found.logit_ratio,
                "bands": {"within noise": NOISE, "suspicious": SUSPICIOUS},
                "inputs": asdict(found.inputs),
                "points": point_rows(found),
                "logits": {
                    "ours_from_truth": found.ours.summary(),
                    "torch_from_truth": found.peer.summary(),
                    "ours_from_torch": found.apart.summary(),
                },
                "positions": self.columns("positions"),
                "continuations": [asdict(one) for one in found.continuations],
                "sweeps": sweep_rows(found),
                "environment": dict(found.environment),
                "notes": found.notes,
            }
        )

    def save_json(self, file: str | Path) -> None:
        write_text(file, json.dumps(self.to_json(), ensure_ascii=False, indent=1) + "\n")

    def save_report(self, file: str | Path) -> None:
        """Write the report as one self-contained HTML file."""
        write_text(file, page(self.results))


# --- tables ------------------------------------------------------------------------------------


def point_rows(found: Results) -> Rows:
    """One row per tensor."""
    return [point.summary() for point in found.points]


def position_rows(found: Results) -> Rows:
    """One row per position: the errors of the logits there."""
    logits = found.point(LOGITS)
    places = (
        (prompt, position, token)
        for prompt, ids in enumerate(found.inputs.prompts)
        for position, token in enumerate(ids)
    )
    return [
        {
            "prompt": prompt,
            "position": position,
            "token": token,
            "ours_relative": float(logits.ours.relative[at]),
            "torch_relative": float(logits.peer.relative[at]),
            "ours_kl": float(found.ours.kl[at]),
            "torch_kl": float(found.peer.kl[at]),
        }
        for at, (prompt, position, token) in enumerate(places)
    ]


def continuation_rows(found: Results) -> Rows:
    """One row per prompt: the step at which greedy continuations diverge."""
    rows: Rows = []
    for one in found.continuations:
        row: dict[str, Any] = {"prompt": one.prompt, "band": one.band.label}
        for name in ("ours_from_truth", "peer_from_truth", "ours_from_peer"):
            parting: Divergence | None = getattr(one, name)
            row[name] = None if parting is None else parting.step
            row[f"{name}_margin"] = None if parting is None else parting.margin
            row[f"{name}_tie"] = None if parting is None else parting.tie
        rows.append(row)
    return rows


def sweep_rows(found: Results) -> Rows:
    """One row per sweep: batched, chunked, decoded or cached, against plain scoring."""
    rows: Rows = []
    for sweep in found.sweeps:
        row = {**vars(sweep), "ratio": sweep.ratios.worst, "band": sweep.band.label}
        del row["ratios"]
        rows.append(row)
    return rows


TABLES: dict[str, Callable[[Results], Rows]] = {
    "points": point_rows,
    "positions": position_rows,
    "continuations": continuation_rows,
    "sweeps": sweep_rows,
}


def write_text(file: str | Path, text: str) -> None:
    """Write a file; ConfigError if that fails."""
    try:
        Path(file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{str(file)!r} cannot be written: {error}.") from error


def finite(value: Any) -> Any:
    """Replace infinities and NaN by text, since JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [finite(one) for one in value]
    return value
