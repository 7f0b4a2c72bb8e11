"""Names of transformers' models are found in its source once per installation, and are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from jengine.text import transformers_names

IMPORTS = """
import json, sys
read = []
def note(event, given):
    if event == "open" and "/transformers/models/" in str(given[0]) and given[1] == "r":
        read.append(given[0])
sys.addaudithook(note)
if "keep" in sys.argv:
    from jengine.text.transformers_names import keep_names
    keep_names()
import transformers
from transformers import AutoTokenizer, CONFIG_MAPPING, models
print(json.dumps({
    "read": len(read),
    "names": sorted(dir(transformers)),
    "models": sorted(dir(models)),
    "homes": transformers._class_to_module,
    "lacking": {name: sorted(of) for name, of in transformers._object_missing_backend.items()},
}))
"""


def imported(home: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS, *words],
        env={**os.environ, "XDG_CACHE_HOME": str(home)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_names_are_found_once_and_are_those_of_transformers(tmp_path: Path) -> None:
    own = imported(tmp_path)
    first, second = imported(tmp_path, "keep"), imported(tmp_path, "keep")
    assert own["read"] - first["read"] == first["read"] - second["read"] > 1000
    for found in (first, second):
        assert {**found, "read": 0} == {**own, "read": 0}
    (kept,) = (tmp_path / "jengine").iterdir()
    kept.write_text("[[", encoding="utf-8")
    assert imported(tmp_path, "keep") == first and json.loads(kept.read_text())


def test_source_that_may_change_is_read_again(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    assert transformers_names._file_of(package) is None
    record = tmp_path / "transformers-5.24.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("one")
    before = transformers_names._file_of(package)
    record.write_text("another")
    assert before is not None and transformers_names._file_of(package) != before
