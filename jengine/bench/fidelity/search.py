"""Draws of families one after the other, the table of what was found, and its JSON.

The program that `python -m jengine.bench.fidelity` becomes.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import jax

from jengine.bench.fidelity.check import Found, check
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.flags import parser
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.transformers_process import Transformers
from jengine.bench.surroundings import shown_command, surroundings
from jengine.errors import JengineError
from pallas_kernels.cpu.library import instruction_set

# Every draw has programs of its own, which JAX would keep.
DRAWS_BETWEEN_CLEARING = 25


@dataclass
class Row:
    """What was found of one family on one implementation."""

    family: str
    implementation: str
    draws: int = 0
    largest: float = 0.0  # of all that passed, unless one failed
    worst: int | None = None  # the number of the draw with the largest error
    ill_conditioned: int = 0
    notes: list[str] = field(default_factory=list)  # the draws whose errors have a reason
    impossible: int = 0  # shapes that the implementation says it does not compute
    refused: dict[str, int] = field(default_factory=dict)  # message -> number of the first draw
    failed: list[int] = field(default_factory=list)

    def add(self, number: int, found: Found) -> None:
        """Count one draw."""
        self.draws += 1
        if found.note:
            self.ill_conditioned += found.passed
            self.notes.append(f"{number}: {found.error:.1e}, {found.note}")
        if found.error >= self.largest:
            self.largest, self.worst = found.error, number
        if not found.passed:
            self.failed.append(number)


def search(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Print and keep what was found; the status is 1 if a draw failed or was refused."""
    families = args.family or FAMILIES
    rows = [[Row(family, how) for how in args.implementation] for family in families]
    every = [row for of_family in rows for row in of_family]
    began = time.monotonic()
    with Transformers() as theirs:
        for count, (number, row) in enumerate(turns(args, rows)):
            if args.seconds is not None and time.monotonic() - began > args.seconds:
                break
            one_draw(theirs, row, number)
            if count % DRAWS_BETWEEN_CLEARING == DRAWS_BETWEEN_CLEARING - 1:
                jax.clear_caches()
    seconds = time.monotonic() - began
    print(printed(every))
    result = described(args.implementation, every, words, seconds)
    print(json.dumps(result))
    if args.output_json is not None:
        args.output_json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["failed"] > 0 or result["refused"] > 0)


def turns(args: argparse.Namespace, rows: Sequence[Sequence[Row]]) -> Iterator[tuple[int, Row]]:
    """One draw of each family before the second of any, on the next implementation each time."""
    ways = len(args.implementation)
    for turn in range(args.draws * ways):
        for place, of_family in enumerate(rows):
            yield args.seed + turn, of_family[(place + turn) % ways]


def one_draw(theirs: Transformers, row: Row, number: int) -> None:
    """Check it, and say how to repeat it if it is too far off or refused."""
    how = IMPLEMENTATIONS[row.implementation]
    try:
        found = check(theirs, row.family, number, how)
    except JengineError as refusal:
        said = str(refusal)
        if how.impossible and re.search(how.impossible, said):
            row.impossible += 1
        elif row.refused.setdefault(said[:300], number) == number:
            print(f"refused, {said[:300]}: {again(row, number)}", flush=True)
        return
    row.add(number, found)
    if not found.passed:
        print(f"off by {found.error:.1e} {found.note}: {again(row, number)}", flush=True)


def again(row: Row, number: int) -> str:
    """The command that repeats a draw."""
    words = ["--family", row.family, "--seed", str(number), "--draws", "1"]
    command = shlex.join([*words, "--implementation", row.implementation])
    return f"python -m jengine.bench.fidelity {command}"


def printed(rows: Sequence[Row]) -> str:
    """The table for people."""
    lines = [
        "family               implementation  draws  largest error  worst draw  ill-conditioned"
        "  failed  impossible"
    ]
    for row in rows:
        if row.draws or row.refused or row.impossible:
            lines.append(
                f"{row.family:20} {row.implementation:14}  {row.draws:5}  {row.largest:13.1e}"
                f"  {row.worst!s:>10}  {row.ill_conditioned:15}  {len(row.failed):6}"
                f"  {row.impossible:10}"
            )
        lines += [f"    draw {note}" for note in row.notes]
        lines += [f"    refused, as in draw {one}: {text}" for text, one in row.refused.items()]
    return "\n".join(lines)


def described(
    implementations: Sequence[str], rows: Sequence[Row], words: Sequence[str], seconds: float
) -> dict[str, Any]:
    """The result that is kept."""
    return {
        "command": shown_command("jengine.bench.fidelity", words),
        "bench": "fidelity",
        "implementation": ", ".join(implementations),
        "instructions": instruction_set(),
        **surroundings(),
        "seconds": seconds,
        "draws": sum(row.draws for row in rows),
        "failed": sum(len(row.failed) for row in rows),
        "refused": sum(len(row.refused) for row in rows),
        "impossible": sum(row.impossible for row in rows),
        "families": [asdict(row) for row in rows if row.draws or row.refused or row.impossible],
    }


if __name__ == "__main__":
    raise SystemExit(search(parser("").parse_args(), sys.argv[1:]))
