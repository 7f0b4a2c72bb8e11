"""Names of transformers' models are found in its source once per installation, and are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
import transformers.utils

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
    kept.write_text('{"installed": 1}', encoding="utf-8")
    assert imported(tmp_path, "keep") == first and json.loads(kept.read_text())
    assert [*(tmp_path / "jengine").iterdir()] == [kept]


@pytest.mark.parametrize("broken", ["[[", "[]", "{}", '{"installed": 1}'])
def test_a_broken_cache_is_written_again(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = Path(transformers.__file__).parent
    names = {frozenset(["torch"]): {"one": {"A"}}}
    file = transformers_names._file_of(package)
    assert file is not None
    file.parent.mkdir()
    file.write_text(broken)
    for find in (lambda: names, dict):
        found = transformers_names._kept_names(find, package)
        assert {key: {"one": set(of["one"])} for key, of in found.items()} == names


def test_source_that_may_change_is_read_again(tmp_path: Path) -> None:
    package = tmp_path / "transformers"
    (package / "models").mkdir(parents=True)
    assert transformers_names._installed(package) is None
    record = tmp_path / "transformers-5.24.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("one")
    before = transformers_names._installed(package)
    record.write_text("another")
    assert before is not None and transformers_names._installed(package) != before


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is a file."""
    (tmp_path / "jengine").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    package = Path(transformers.__file__).parent
    names = {frozenset[str](): {"one": {"A"}}}
    assert transformers_names._kept_names(lambda: names, package) == names


def test_finders_of_imports_in_other_threads_keep_their_places(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, transformers_names.FINDS_NAMES)
    transformers_names.keep_names()
    transformers_names.keep_names()
    before = [*sys.meta_path]
    own, path = before[0], transformers.utils.__path__
    found = own.find_spec(transformers_names.FINDS_NAMES, path)
    assert found is not None and isinstance(found.loader, transformers_names._NamesLoader)
    assert own.find_spec(transformers_names.FINDS_NAMES, path) is None
    assert sys.meta_path == before
    assert [type(one) for one in before].count(transformers_names._NamesFinder) == 1
