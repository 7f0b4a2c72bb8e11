"""Publishes a walk's outcome: the generic reader's list of classes, and the documentation's table.

python -m jengine.bench.coverage.publish [--check]
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jengine.bench.coverage.kept import OUTCOMES, named
from jengine.bench.table.marked import is_check, settle, with_marked
from jengine.models.importing import proven
from jengine.pictures.page import Table, as_markdown

COMMAND = "python -m jengine.bench.coverage.publish"
RESULT = Path(__file__).parents[1] / "results" / "coverage.json"
PAGE = Path(__file__).parents[2] / "docs" / "pages" / "models.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"
LONGEST = 160


def proven_classes(result: Mapping[str, Any]) -> str:
    """The classes that the generic reader reads as transformers does, with the keys they need."""
    found = {
        name: one["needs"]
        for name, one in sorted(result["classes"].items())
        if named(one) == "equal by generic"
    }
    return json.dumps(found, indent=1) + "\n"


def table(result: Mapping[str, Any]) -> str:
    """The documentation's table: counts, then a row per class that is not a family's."""
    counts = ", ".join(f"{name}: {result['counts'][name]}" for name in OUTCOMES)
    others = ", ".join(
        f"{one['known']} of {one['of']} {kind}" for kind, one in result["by_name"].items()
    )
    rows = (
        (f"`{name}`", named(one), shown(one.get("reason", "")))
        for name, one in sorted(result["classes"].items())
        if named(one) != "equal by name"
    )
    about = (
        f"With transformers {result['versions']['transformers']}: {counts}.\n"
        f"Read by their names, but not compared in this walk: {others}."
    )
    return as_markdown(about, Table(("class", "outcome", "reason"), rows)) + "\n"


def shown(reason: str) -> str:
    """A reason on one line of a table."""
    text = " ".join(reason.replace("<", "&lt;").split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def main(words: Sequence[str] | None = None) -> int:
    """Write both files, or with --check report whether they are up to date."""
    check = is_check(COMMAND, words)
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    page = with_marked(PAGE, BEGIN, END, table(result))
    return settle({proven.FILE: proven_classes(result), PAGE: page}, COMMAND, check=check)


if __name__ == "__main__":
    raise SystemExit(main())
