"""The command line of a benchmark: parses flags, prints results, and saves them as JSON with
command, commit, machine and versions. Must not know what is measured."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jengine.bench.surroundings import shown_command, surroundings
from jengine.errors import ConfigError

Printed = Callable[[dict[str, Any]], str]


class Benchmark(NamedTuple):
    """`python -m ROOM.NAME`. Each flag maps to argparse keyword arguments, or to its default value,
    which also sets its type."""

    name: str
    about: str
    flags: Mapping[str, Any]
    measure: Callable[[argparse.Namespace], dict[str, Any]]
    printed: Printed | None = None
    room: str = "jengine.bench"

    def main(self, words: Sequence[str] | None = None) -> int:
        """Run the benchmark, print and save its result; returns the exit status."""
        words = sys.argv[1:] if words is None else words
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.room}.{self.name}", description=self.about.splitlines()[0]
        )
        for flag, given in self.flags.items():
            own = given if isinstance(given, dict) else {"type": type(given), "default": given}
            parser.add_argument(flag, **own)
        parser.add_argument("--output-json", type=Path, metavar="FILE")
        args = parser.parse_args(words)
        found = {"bench": self.name, **self.measure(args)}
        command = shown_command(f"{self.room}.{self.name}", words)
        return keep(command, {**found, **surroundings()}, args.output_json, self.printed)


def keep(command: str, found: Mapping[str, Any], file: Path | None, printed: Printed | None) -> int:
    """Print the report and, last, the JSON; write the JSON to `file` if given. Returns 1 if
    something failed."""
    result = {**found, "command": command}
    if printed is not None:
        print(printed(result))
    print(json.dumps(result))
    if file is not None:
        file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(result.get("failed")))


def earlier(file: Path, kind: str, command: str) -> dict[str, Any]:
    """Read a saved result of this benchmark (`--from`). Raises ConfigError for anything else."""
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--from {str(file)!r}: expected what {command} --output-json wrote: {error}"
        ) from error
    if not isinstance(result, dict) or result.get("bench") != kind:
        raise ConfigError(
            f"--from {str(file)!r}: expected a result of {command}, found something else."
        )
    return result
