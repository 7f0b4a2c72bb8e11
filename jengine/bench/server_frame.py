"""The command line of a benchmark that starts servers: settings fields become flags, and flags of
`jengine serve` follow `--`. Must not know what is measured."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from jengine.assembly.settings.flags import flag_of
from jengine.bench.frame import Printed, keep
from jengine.bench.machine import client_surroundings
from jengine.bench.surroundings import shown_command
from jengine.errors import JengineError

T = TypeVar("T")


def flag(default: Any, text: str, kind: type | None = None) -> Any:
    """A settings field that becomes a flag, with default and help."""
    return field(default=default, metadata={"help": text, "type": kind or type(default)})


@dataclass(frozen=True, kw_only=True)
class ServerBenchmark(Generic[T]):
    """`python -m jengine.bench.NAME [MODEL]`."""

    name: str
    about: str
    settings: Callable[..., T]
    log: tuple[str, str] = ("--log", "keep the server's log in this file")
    measure: Callable[[T, Path], dict[str, Any]]  # and where logs are kept
    printed: Printed

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, T]:
        """Parse the command line into arguments and settings."""
        cut = words.index("--") if "--" in words else len(words)
        parser = argparse.ArgumentParser(
            prog=f"python -m jengine.bench.{self.name}",
            description=self.about,
            epilog="Flags of `jengine serve` come after --, such as: -- --max-num-seqs 64",
        )
        parser.add_argument("model", nargs="?", default="demo", help="a model folder, or demo")
        flags = [one for one in fields(self.settings) if "help" in one.metadata]  # type: ignore[arg-type]
        for one in flags:
            shown = "" if one.default is None else f" [{one.default:g}]"
            parser.add_argument(
                flag_of(one.name), default=one.default, type=one.metadata["type"],
                help=one.metadata["help"] + shown,
            )  # fmt: skip
        parser.add_argument(self.log[0], dest="log", type=Path, help=self.log[1])
        parser.add_argument("--output-json", type=Path, help="also write the JSON to a file")
        given = parser.parse_args(words[:cut])
        own = {one.name: getattr(given, one.name) for one in flags}
        return given, self.settings(model=given.model, flags=tuple(words[cut + 1 :]), **own)

    def main(self, words: Sequence[str]) -> int:
        """Run the benchmark, print and save its result; returns the exit status."""
        given, settings = self.parse(words)
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = self.measure(settings, given.log or Path(folder) / "logs")
            except JengineError as error:
                print(f"jengine: error: {error}", file=sys.stderr)
                return 1
        found = {"bench": self.name, **found, **client_surroundings()}
        command = shown_command(f"jengine.bench.{self.name}", words)
        return keep(command, found, given.output_json, self.printed)
