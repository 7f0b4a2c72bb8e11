"""The tour describes the code that is there: its rooms and its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TOUR = (ROOT / "jengine" / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "jengine/README.md", "jengine/bench/README.md")


def test_the_tour_is_short() -> None:
    assert len(TOUR.splitlines()) <= 250


def test_every_room_is_described() -> None:
    rooms = {path.parent.name for path in (ROOT / "jengine").glob("*/__init__.py")}
    described = set(re.findall(r"^\| `(\w+)` \|", TOUR, flags=re.M))
    assert rooms - described == {"config"}  # nouns


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_that_documents_name_exist(document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:[\w.]+/)+[\w.]*\w)`", text))
    places = (ROOT, ROOT / "jengine", (ROOT / document).parent)
    missing = [name for name in named if not any((place / name).exists() for place in places)]
    assert missing == []
