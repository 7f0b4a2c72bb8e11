"""Every name that an example imports from this project is there.

CI runs the examples themselves; this says at once when a move has left one behind.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
OURS = ("jengine", "sharding", "pallas_kernels")
FILES = sorted(EXAMPLES.rglob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(EXAMPLES)) for file in FILES])
def test_imported_names_exist(file: Path) -> None:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
