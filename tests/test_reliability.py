"""tests/reliability.md names a test for every fault: all 63 rows, and each test exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
ROWS = 63
WAITS = re.compile(r"^waits: \S+")


def table() -> dict[int, str]:
    """Number of a row -> its tests, or what it waits for."""
    rows = {}
    for line in (TESTS / "reliability.md").read_text().splitlines():
        found = re.match(r"\| (\d+) \| [^|]+ \| ([^|]+) \|$", line)
        if found:
            assert int(found[1]) not in rows, f"row {found[1]} is there twice"
            rows[int(found[1])] = found[2].strip()
    return rows


@cache
def names_in(file: Path) -> set[str]:
    """Functions and classes of a test file, in classes too."""
    tree = ast.parse(file.read_text())
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, kinds)}


def test_every_row_is_there() -> None:
    assert sorted(table()) == list(range(1, ROWS + 1))


def test_every_test_that_is_named_exists() -> None:
    missing = []
    for number, text in table().items():
        if WAITS.match(text):
            continue
        for name in text.split(", "):
            file, _, test = name.partition("::")
            path = TESTS / file
            if not path.is_file() or test not in names_in(path):
                missing.append(f"row {number}: {name}")
    assert missing == []
