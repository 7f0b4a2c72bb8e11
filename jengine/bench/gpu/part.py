"""A stage's results so far, in a JSON file that is valid at every moment.

In: lines, one per measurement. Out: JSON. Must not know what is measured. No jax here.
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

# Characters of an error message that are kept; the log has all of it.
MOST_TEXT = 600


class StageResult:
    """A stage's result file and time budget."""

    def __init__(self, path: Path, seconds: float, after: Path | None = None) -> None:
        self.path = path
        self.seen = cases_of(after, path.stem)
        self.began = time.monotonic()
        self.seconds = seconds
        self.content: dict[str, Any] = {"status": "running", "lines": [], "left_out": []}
        self.write()

    def add(self, **line: Any) -> None:
        """Save one measurement and log it."""
        self.content["lines"].append(line)
        self.write()
        print(json.dumps(line), flush=True)

    @contextmanager
    def attempt(self, what: str, case: object) -> Iterator[None]:
        """Record an exception inside as a line, mark the stage as failed, and continue: device time
        is rare, and the next case may work."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - kept, shown and counted
            text = f"{type(error).__name__}: {error}".strip()
            self.add(what=what, case=str(case), failed=text[:MOST_TEXT])

    @property
    def failed(self) -> bool:
        """Whether an attempt has failed."""
        return any("failed" in line for line in self.content["lines"])

    def note(self, text: str) -> None:
        """Save a fact about the whole stage."""
        self.content.setdefault("notes", []).append(text)
        self.write()

    def leave_out(self, what: Any, why: str) -> None:
        """Record a case as not measured."""
        self.content["left_out"].append(f"{what}: {why}")
        self.write()

    def in_time(self, items: Iterable[Any], share: float = 1.0) -> Iterator[Any]:
        """Yield items until this share of the remaining time is spent, those that an earlier run
        has measured last; record the others as not measured."""
        end = time.monotonic() + share * (self.began + self.seconds - time.monotonic())
        for item in sorted(items, key=lambda item: str(item) in self.seen):
            if time.monotonic() > end:
                self.leave_out(item, "no time left")
            else:
                yield item

    def write(self) -> None:
        self.content["seconds"] = round(time.monotonic() - self.began, 1)
        write_json(self.path, self.content)


def cases_of(kept: Path | None, stage: str) -> set[str]:
    """Cases that a stage of a kept run has measured."""
    if kept is None:
        return set()
    parts = json.loads(kept.read_text(encoding="utf-8"))["parts"]
    lines = parts.get(stage, {}).get("lines", [])
    return {line["case"] for line in lines if "case" in line and "failed" not in line}


def write_json(path: Path, content: Any) -> None:
    """Write a file atomically."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)


def stage_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="a stage of python -m jengine.bench.gpu")
    parser.add_argument("--part", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--model", default="")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--tensor-parallel", action="store_true", help="on all devices")
    parser.add_argument("--captured", action="store_true", help="collectives in CUDA graphs")
    parser.add_argument("--long-graphs", action="store_true", help="none of few launches")
    parser.add_argument("--matmuls", default="auto", help="the library of XLA's matmuls")
    parser.add_argument("--after", type=Path, help="a kept run, whose cases come last")
    parser.add_argument("--soak", action="store_true", help="one size of step, for long")
    parser.add_argument("--engine", default="", help="of the table of engines")
    parser.add_argument("--race", action="store_true", help="ours and that engine, in turns")
    parser.add_argument("--peer-python", default="", help="a Python that has vLLM, or torch")
    return parser


def run_stage(measure: Callable[[StageResult, argparse.Namespace], None]) -> None:
    """Entry point of a stage's process."""
    args = stage_parser().parse_args()
    part = StageResult(args.part, args.seconds, args.after)
    measure(part, args)
    part.content["status"] = "failed" if part.failed else "done"
    part.write()
