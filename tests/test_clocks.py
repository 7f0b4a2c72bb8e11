"""Durations and deadlines are measured on a monotonic clock: the time of day may be set at will."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("jengine", "pallas_kernels", "sharding")
DAY_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}
# Ages of files, which have the time of day, and when something happened, for people to read.
OF_DAY = {
    "jengine/connectors/folder.py",
    "jengine/connectors/kv_events.py",
    "jengine/engine/answer.py",
    "jengine/metrics/exporter.py",
    "jengine/runner/disk/compile_cache.py",
    "pallas_kernels/cpu/build.py",
}


def reads_day_clock(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and (node.value.id, node.attr) in DAY_CLOCKS
    )


def is_time_stamp(node: ast.AST) -> bool:
    """`int(time.time())`: whole seconds that a client reads, and nothing is subtracted from."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "int"
        and isinstance(node.args[0], ast.Call)
        and reads_day_clock(node.args[0].func)
    )


def reads(file: Path) -> int:
    """How often a file reads the time of day for something other than a time stamp."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    imported = [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        and node.module == "time"
        and {alias.name for alias in node.names} & {"time", "time_ns"}
    ]
    answers = {"server", "integrations"} & set(file.parts)
    stamps = sum(map(is_time_stamp, nodes)) if answers else 0
    return len(imported) + sum(map(reads_day_clock, nodes)) - stamps


def test_only_named_files_and_time_stamps_read_the_time_of_day() -> None:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]
    files = [file for file in files if not file.is_relative_to(ROOT / "jengine" / "bench")]
    assert len(files) > 200
    found = {str(file.relative_to(ROOT)) for file in files if reads(file)}
    assert found == OF_DAY
