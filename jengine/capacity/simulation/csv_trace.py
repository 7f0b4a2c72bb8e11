"""Traces from a CSV file with a line per request.

In: a file. Out: requests by arrival. Columns: `arrival` in seconds, `prompt_tokens`,
`output_tokens`; optionally `prefix` (a name) and `prefix_tokens`, for prompts with a common prefix;
and `conversation` (a name): its lines are turns, each of whose prompts is the conversation so far
plus `prompt_tokens`.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import numpy as np

from jengine.capacity.simulation.trace import (
    Arrival,
    Conversation,
    SimulatedRequest,
    TraceSettings,
    Turn,
)
from jengine.errors import ConfigError

NEEDED = ("arrival", "prompt_tokens", "output_tokens")
KNOWN = (*NEEDED, "prefix", "prefix_tokens", "conversation")


@dataclass(frozen=True)
class Line:
    """One request."""

    arrival: float
    prompt: int
    answer: int
    prefix: str = ""
    prefix_tokens: int = 0


@dataclass
class CsvTrace:
    """Requests of a CSV trace. The groups of a deployment divide its conversations."""

    file: Path
    settings: TraceSettings
    _talks: list[list[Line]] = field(init=False)

    def __post_init__(self) -> None:
        self._talks = sorted(talks(self.file), key=lambda talk: talk[0].arrival)

    @property
    def has_turns(self) -> bool:
        return any(len(talk) > 1 for talk in self._talks)

    def arrivals(self) -> Iterator[Arrival]:
        given = self.settings
        rng = np.random.default_rng((given.seed, 1, given.part))
        for number, (first, *others) in enumerate(self._talks):
            if number % given.of != given.part:
                continue
            prompt = [*self._prefix(first), *self._text(rng, first.prompt)]
            turns = [
                Turn(self._text(rng, line.prompt), line.answer, 0.0, line.arrival)
                for line in reversed(others)
            ]
            yield (
                first.arrival,
                SimulatedRequest(f"{number}", prompt, first.answer, Conversation(turns)),
            )

    def _prefix(self, line: Line) -> list[int]:
        rng = np.random.default_rng((self.settings.seed, crc32(line.prefix.encode())))
        return self._text(rng, line.prefix_tokens)

    def _text(self, rng: np.random.Generator, length: int) -> list[int]:
        return rng.integers(1, self.settings.vocab_size, length).tolist()


def talks(file: Path) -> list[list[Line]]:
    """The lines of each conversation; a line without one is alone."""
    found: dict[str, list[Line]] = defaultdict(list)
    try:
        with file.open(newline="", encoding="utf-8") as text:
            reader = csv.DictReader(text)
            names = reader.fieldnames or []
            if not set(NEEDED) <= set(names) or not set(names) <= set(KNOWN):
                raise ConfigError(
                    f"--csv {str(file)!r} has the columns {', '.join(names) or 'none'}: expected "
                    f"{', '.join(NEEDED)}, and if wanted {', '.join(KNOWN[len(NEEDED) :])}."
                )
            for number, row in enumerate(reader, 2):
                key = row.get("conversation") or f"line {number}"
                found[key].append(line_of(file, number, row))
    except OSError as error:
        raise ConfigError(f"--csv {str(file)!r}: {error}") from error
    if not found:
        raise ConfigError(f"--csv {str(file)!r} has no requests: expected a line for each.")
    return [sorted(lines, key=lambda line: line.arrival) for lines in found.values()]


def line_of(file: Path, number: int, row: dict[str, str]) -> Line:
    """One line's numbers, checked."""
    try:
        line = Line(
            float(row["arrival"]),
            int(row["prompt_tokens"]),
            int(row["output_tokens"]),
            row.get("prefix") or "",
            int(row.get("prefix_tokens") or 0),
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"--csv {str(file)!r}, line {number}: expected numbers: {error}"
        ) from error
    if line.arrival < 0 or line.prompt + line.prefix_tokens < 1 or line.answer < 1:
        raise ConfigError(
            f"--csv {str(file)!r}, line {number}: expected an arrival of 0 or more, and at least "
            "one token of the prompt and one of the answer."
        )
    return line
