"""Outcomes by class, saved after every class in a JSON file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jengine.bench.machine import commit, machine, versions
from jengine.bench.surroundings import shown_command

LIBRARIES = ("jax", "jaxlib", "numpy", "torch", "transformers")
OUTCOMES = ("equal by name", "equal by generic", "refused", "no tiny model", "different", "broke")
LONGEST_REASON = 300


class KeptOutcomes:
    """Outcomes of classes, with those that the file holds."""

    def __init__(self, file: Path | None, words: Sequence[str]) -> None:
        self._file = file
        self._run = {
            "bench": "coverage",
            "hardware": {**machine(), "devices": ["cpu"]},
            "versions": versions(LIBRARIES),
        }
        kept: dict[str, Any] = {}
        if file is not None and file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
        self.classes: dict[str, dict[str, Any]] = kept.get("classes", {})
        # Of other mappings than the causal one: how many classes are known, and of how many.
        self.by_name: dict[str, dict[str, int]] = kept.get("by_name", {})
        run = {"command": shown_command("jengine.bench.coverage", words), "commit": commit()}
        self._runs = [*kept.get("runs", []), run]

    def add(self, architecture: str, answer: Mapping[str, Any]) -> None:
        """Record and save a class."""
        found = dict(answer)
        for key in found.keys() & {"reason", "varied"}:
            found[key] = found[key][:LONGEST_REASON]
        self.classes[architecture] = found
        if self._file is not None:
            beside = self._file.with_name(f"{self._file.name}.new")
            beside.write_text(self.text(), encoding="utf-8")
            os.replace(beside, self._file)

    def text(self) -> str:
        """The file's content."""
        classes = dict(sorted(self.classes.items()))
        whole = {
            **self._run, "runs": self._runs, "counts": self.counts(), "by_name": self.by_name,
            "classes": classes,
        }  # fmt: skip
        return json.dumps(whole, indent=1) + "\n"

    def counts(self) -> dict[str, int]:
        """Number of classes per outcome."""
        found = Counter(map(named, self.classes.values()))
        return {name: found[name] for name in OUTCOMES}

    @property
    def has_differences(self) -> bool:
        """Whether a class runs and answers otherwise, or breaks."""
        return any(one["outcome"] in ("different", "broke") for one in self.classes.values())


def named(answer: Mapping[str, Any]) -> str:
    """An outcome, with how the class was read if it is equal."""
    equal = answer["outcome"] == "equal"
    return f"equal by {answer['by']}" if equal else answer["outcome"]
