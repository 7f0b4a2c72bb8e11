"""Files of the repository that are made of kept results, whole or between two marks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path


def with_marked(file: Path, begin: str, end: str, made: str) -> str:
    """A file's text, with what is made between its marks."""
    text = file.read_text(encoding="utf-8")
    if not text.count(begin) == text.count(end) == 1:
        raise SystemExit(f"{file}: expected one {begin.strip()} and one {end.strip()}.")
    before, after = text.split(begin)[0], text.split(end)[1]
    return f"{before}{begin}{made}{end}{after}"


def is_check(command: str, words: Sequence[str] | None) -> bool:
    """Whether the command line asks only for a comparison."""
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    return parser.parse_args(words).check


def settle(wanted: Mapping[Path, str], command: str, *, check: bool) -> int:
    """Write the files that differ, or say which do; returns the exit status."""
    stale = [
        file for file, text in wanted.items()
        if not file.exists() or file.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    for file in stale:
        if check:
            print(f"{file} does not show the results: {command}", file=sys.stderr)
        else:
            file.write_text(wanted[file], encoding="utf-8")
    return int(check and bool(stale))
