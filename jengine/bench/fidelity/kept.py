"""Results per family and implementation, saved draw by draw in a JSON file.

A run adds to what earlier ones found: numbers that passed are not drawn again, and those that
failed are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jengine.bench.fidelity.generic import GENERIC
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.errors import ConfigError

LONGEST_REASON = 300


@dataclass
class FamilyRow:
    """Results of one family on one implementation."""

    family: str
    implementation: str
    instructions: str = ""  # of the kernels' build
    draws: int = 0  # compared with transformers
    largest: float = 0.0  # error of those that passed
    worst: int | None = None  # the number of the draw with it
    ill_conditioned: int = 0
    notes: list[str] = field(default_factory=list)  # the draws whose errors have a reason
    impossible: int = 0  # shapes that the implementation says it does not compute
    failed: dict[int, str] = field(default_factory=dict)  # number -> why, and what repeats it
    seconds: float = 0.0  # of a processor, without transformers' process
    drawn: set[int] = field(default_factory=set)

    def is_due(self, number: int) -> bool:
        """Whether this draw is missing or failed."""
        return number not in self.drawn or number in self.failed

    def add(self, number: int, answer: Mapping[str, Any]) -> str:
        """Record a draw; returns the failure's description, if it failed."""
        if self.failed.pop(number, None) is not None:
            self.draws -= 1
        self.drawn.add(number)
        self.seconds += answer.get("seconds", 0.0)
        self.instructions = answer.get("instructions", self.instructions)
        impossible = IMPLEMENTATIONS[self.implementation].impossible
        if self.family in GENERIC:
            impossible = ".+"  # the generic reader refuses what it cannot explain
        if impossible and re.search(impossible, answer.get("refused", "")):
            self.impossible += 1
            return ""
        self.draws += 1
        if why := failure(answer):
            self.failed[number] = f"{why}: {again(self, number)}"
            return self.failed[number]
        self._add_passed(number, answer["error"], answer["note"])
        return ""

    def _add_passed(self, number: int, error: float, note: str) -> None:
        if note:
            self.ill_conditioned += 1
            self.notes.append(f"{number}: {error:.1e}, {note}")
        if error >= self.largest:
            self.largest, self.worst = error, number


def failure(answer: Mapping[str, Any]) -> str:
    """Description of a draw's failure, or None."""
    if "refused" in answer:
        return f"refused, {answer['refused'][:LONGEST_REASON]}"
    if "broke" in answer:
        return answer["broke"][:LONGEST_REASON]
    if answer["error"] <= answer["limit"]:
        return ""
    return f"off by {answer['error']:.1e} {answer['note']}".rstrip()


def again(row: FamilyRow, number: int) -> str:
    """Command that repeats a draw."""
    words = ["--family", row.family, "--seed", str(number), "--draws", "1"]
    command = shlex.join([*words, "--implementation", row.implementation])
    return f"python -m jengine.bench.fidelity {command}"


class FamilyTable:
    """All rows, and the runs that produced them."""

    def __init__(self, file: Path | None, run: Mapping[str, Any]) -> None:
        """Load the file if it exists, and add this run."""
        self._file = file
        self._run = {**run, "draws": 0, "seconds": 0.0}
        kept = _read(file, run) if file is not None and file.exists() else {}
        self._runs: list[dict[str, Any]] = [*kept.get("runs", []), self._run]
        rows = [_as_row(one) for one in kept.get("families", [])]
        self._rows = {(row.family, row.implementation): row for row in rows}

    def row(self, family: str, implementation: str) -> FamilyRow:
        return self._rows.setdefault((family, implementation), FamilyRow(family, implementation))

    def add(self, row: FamilyRow, number: int, answer: Mapping[str, Any], seconds: float) -> str:
        """Record and save one draw, with the run's elapsed time; returns the failure's description,
        if it failed."""
        why = row.add(number, answer)
        self._run |= {"draws": self._run["draws"] + 1, "seconds": seconds}
        if self._file is not None:
            beside = self._file.with_name(f"{self._file.name}.new")
            beside.write_text(self.text(), encoding="utf-8")
            os.replace(beside, self._file)
        return why

    def result(self) -> dict[str, Any]:
        """The saved content apart from the rows."""
        rows = self._rows.values()
        return {
            **{key: self._run[key] for key in ("command", "commit", "hardware", "versions")},
            "bench": "fidelity",
            "draws": sum(row.draws for row in rows),
            "failed": sum(len(row.failed) for row in rows),
            "impossible": sum(row.impossible for row in rows),
            "runs": [{key: one[key] for key in RUN} for one in self._runs],
        }

    def text(self) -> str:
        """The JSON content, one line per row."""
        head = json.dumps(self.result(), indent=1)
        rows = ",\n".join(json.dumps(_as_json(row)) for row in self._rows.values() if row.drawn)
        return f'{head[:-2]},\n "families": [\n{rows}\n ]\n}}\n'


RUN = ("command", "commit", "versions", "draws", "seconds")


def _read(file: Path, run: Mapping[str, Any]) -> dict[str, Any]:
    kept = json.loads(file.read_text(encoding="utf-8"))
    if "runs" not in kept:
        raise ConfigError(f"{file} has no runs to which draws could be added: give another file.")
    theirs, ours = (one["hardware"]["processor"] for one in (kept, run))
    if theirs != ours:
        raise ConfigError(
            f"{file} was found on {theirs}, and this is {ours}, whose draws belong in another file."
        )
    return kept


def _as_json(row: FamilyRow) -> dict[str, Any]:
    return {**asdict(row), "drawn": stretches(row.drawn)}


def _as_row(kept: dict[str, Any]) -> FamilyRow:
    row = FamilyRow(**kept)
    # JSON's keys are words, and it has no sets.
    row.failed = {int(number): why for number, why in kept["failed"].items()}
    row.drawn = {number for first, last in kept["drawn"] for number in range(first, last + 1)}
    return row


def stretches(numbers: set[int]) -> list[list[int]]:
    """First and last number of each run of consecutive numbers."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found
