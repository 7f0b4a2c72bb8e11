"""What one stage has found so far, as a file that is whole at every moment.

In: lines, one measurement each. Out: JSON. Must not know what is measured. No jax here.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Of an error, enough to know it by; the log has the rest.
MOST_TEXT = 600


class Part:
    """A stage's file and its time."""

    def __init__(self, path: Path, seconds: float) -> None:
        self.path = path
        self.began = time.monotonic()
        self.seconds = seconds
        self.content: dict[str, Any] = {"status": "running", "lines": [], "left_out": []}
        self.write()

    def add(self, **line: Any) -> None:
        """Keep one measurement."""
        self.content["lines"].append(line)
        self.write()

    @contextmanager
    def attempt(self, what: str, case: object) -> Iterator[None]:
        """Go on after an error: it becomes a line, and the stage one that failed. There may be no
        second chance on this device, and the next case may well work."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - kept, told and counted
            text = f"{type(error).__name__}: {error}".strip()
            self.add(what=what, case=str(case), failed=text[:MOST_TEXT])

    @property
    def failed(self) -> bool:
        """Whether an attempt has failed."""
        return any("failed" in line for line in self.content["lines"])

    def note(self, text: str) -> None:
        """Keep what a reader has to know about the whole stage."""
        self.content.setdefault("notes", []).append(text)
        self.write()

    def leave_out(self, what: Any, why: str) -> None:
        """Say what was not measured."""
        self.content["left_out"].append(f"{what}: {why}")
        self.write()

    def in_time(self, items: Iterable[Any], share: float = 1.0) -> Iterator[Any]:
        """The items as long as this share of what time is left lasts; the others are left out by
        name."""
        end = time.monotonic() + share * (self.began + self.seconds - time.monotonic())
        for item in items:
            if time.monotonic() > end:
                self.leave_out(item, "no time left")
            else:
                yield item

    def write(self) -> None:
        """Replace the file."""
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        write_json(self.path, self.content)


def write_json(path: Path, content: Any) -> None:
    """Write a file so that it is old or new at every moment, never half of both."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def run_stage(measure: Callable[[Part, argparse.Namespace], None]) -> None:
    """The main function of a stage's process."""
    parser = argparse.ArgumentParser(description="a stage of python -m jengine.bench.gpu")
    parser.add_argument("--part", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--model", default="")
    parser.add_argument("--few", action="store_true")
    args = parser.parse_args()
    part = Part(args.part, args.seconds)
    measure(part, args)
    part.content["status"] = "failed" if part.failed else "done"
    part.write()
