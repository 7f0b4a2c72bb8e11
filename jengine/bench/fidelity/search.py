"""Checks draws of all families in turn, and prints the table of results."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

from jengine.bench.fidelity.encoders import IMPLEMENTED
from jengine.bench.fidelity.families import FAMILIES
from jengine.bench.fidelity.flags import SEARCHED
from jengine.bench.fidelity.implementations import IMPLEMENTATIONS
from jengine.bench.fidelity.kept import FamilyRow, FamilyTable
from jengine.bench.fidelity.workers import Workers
from jengine.bench.machine import commit, machine, versions
from jengine.bench.surroundings import shown_command

LIBRARIES = ("jax", "jaxlib", "numpy", "torch", "transformers")


def search(args: argparse.Namespace, words: Sequence[str]) -> int:
    """Print and save results; returns 1 if a draw failed."""
    table = FamilyTable(args.output_json, surroundings(words))
    rows = [
        table.row(family, how)
        for family in args.family or SEARCHED
        for how in args.implementation
        if family in FAMILIES or how in IMPLEMENTED
    ]  # fmt: skip
    began = time.monotonic()
    with Workers(args.draw_seconds) as workers:
        for row, number in due(rows, range(args.seed, args.seed + args.draws)):
            if args.seconds is not None and time.monotonic() - began > args.seconds:
                break
            answer = workers.check(row.family, number, row.implementation)
            if why := table.add(row, number, answer, time.monotonic() - began):
                print(why, flush=True)
    print(printed(rows))
    if args.output_json is None:
        print(table.text(), end="")
    return int(any(row.failed for row in rows))


def surroundings(words: Sequence[str]) -> dict[str, object]:
    """Environment of this run, as saved."""
    return {
        "command": shown_command("jengine.bench.fidelity", words),
        "commit": commit(),
        "hardware": {**machine(), "devices": ["cpu"]},
        "versions": versions(LIBRARIES),
    }


def due(rows: Sequence[FamilyRow], numbers: range) -> Iterator[tuple[FamilyRow, int]]:
    """Failed draws first, then draw by draw across families.

    Implementations that share a process come after each other.
    """
    order = list(dict.fromkeys(environment_of(row) for row in rows))
    rows = sorted(rows, key=lambda row: order.index(environment_of(row)))
    for row in rows:
        for number in sorted(row.failed):
            yield row, number
    for number in numbers:
        for row in rows:
            if number not in row.drawn:
                yield row, number


def environment_of(row: FamilyRow) -> tuple[tuple[str, str], ...]:
    """Environment variables of the worker process for a row."""
    return tuple(sorted(IMPLEMENTATIONS[row.implementation].environment.items()))


def printed(rows: Sequence[FamilyRow]) -> str:
    """The table as text."""
    lines = [
        "family               implementation  draws  largest error  worst draw  ill-conditioned"
        "  failed  impossible  seconds each"
    ]
    for row in rows:
        if row.drawn:
            lines.append(
                f"{row.family:20} {row.implementation:14}  {row.draws:5}  {row.largest:13.1e}"
                f"  {row.worst!s:>10}  {row.ill_conditioned:15}  {len(row.failed):6}"
                f"  {row.impossible:10}  {row.seconds / len(row.drawn):12.2f}"
            )
        lines += [f"    draw {note}" for note in row.notes]
    return "\n".join(lines)
