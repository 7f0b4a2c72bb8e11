"""Draws of families one after the other, the table of what was found, and its JSON.

The program that `python -m jengine.bench.fidelity` becomes.
"""

from __future__ import annotations

import argparse
import json
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
    """What was found of one family."""

    family: str
    draws: int = 0
    largest: float = 0.0  # of all that passed, unless one failed
    worst: int | None = None  # the number of the draw with the largest error
    ill_conditioned: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # message -> number of the first draw
    failed: list[int] = field(default_factory=list)

    def add(self, number: int, found: Found) -> None:
        """Count one draw."""
        self.draws += 1
        self.ill_conditioned += found.passed and found.note != ""
        if found.error >= self.largest:
            self.largest, self.worst = found.error, number
        if not found.passed:
            self.failed.append(number)


def search(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Print and keep what was found; the status is 1 if a draw failed or was refused."""
    rows = {family: Row(family) for family in args.family or FAMILIES}
    began = time.monotonic()
    with Transformers() as theirs:
        for count, (number, row) in enumerate(turns(args, list(rows.values()))):
            if args.seconds is not None and time.monotonic() - began > args.seconds:
                break
            one_draw(theirs, row, number, args.implementation)
            if count % DRAWS_BETWEEN_CLEARING == DRAWS_BETWEEN_CLEARING - 1:
                jax.clear_caches()
    print(printed(args.implementation, list(rows.values())))
    result = described(args.implementation, list(rows.values()), words)
    print(json.dumps(result))
    if args.output_json is not None:
        args.output_json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(result["failed"] > 0 or result["refused"] > 0)


def turns(args: argparse.Namespace, rows: Sequence[Row]) -> Iterator[tuple[int, Row]]:
    """One draw of each family before the second of any."""
    for number in range(args.seed, args.seed + args.draws):
        for row in rows:
            yield number, row


def one_draw(theirs: Transformers, row: Row, number: int, implementation: str) -> None:
    """Check it, and say how to repeat it if it is too far off."""
    try:
        found = check(theirs, row.family, number, IMPLEMENTATIONS[implementation])
    except JengineError as refusal:
        row.refused.setdefault(str(refusal)[:300], number)
        return
    row.add(number, found)
    if not found.passed:
        again = ["--family", row.family, "--seed", str(number), "--draws", "1"]
        command = shlex.join([*again, "--implementation", implementation])
        print(
            f"off by {found.error:.1e} {found.note}: python -m jengine.bench.fidelity {command}",
            flush=True,
        )


def printed(implementation: str, rows: Sequence[Row]) -> str:
    """The table for people."""
    lines = [f"{implementation:20} draws  largest error  worst draw  ill-conditioned  failed"]
    for row in rows:
        lines.append(
            f"{row.family:20} {row.draws:5}  {row.largest:13.1e}  {row.worst!s:>10}"
            f"  {row.ill_conditioned:15}  {len(row.failed):6}"
        )
        lines += [f"    refused, as in draw {one}: {text}" for text, one in row.refused.items()]
    return "\n".join(lines)


def described(implementation: str, rows: Sequence[Row], words: Sequence[str]) -> dict[str, Any]:
    """The result that is kept."""
    return {
        "command": shown_command("jengine.bench.fidelity", words),
        "bench": "fidelity",
        "implementation": implementation,
        "instructions": instruction_set(),
        **surroundings(),
        "draws": sum(row.draws for row in rows),
        "failed": sum(len(row.failed) for row in rows),
        "refused": sum(len(row.refused) for row in rows),
        "largest": max(row.largest for row in rows),
        "families": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    raise SystemExit(search(parser("").parse_args(), sys.argv[1:]))
