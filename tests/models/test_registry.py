"""What people are told about supported models is what the registry holds."""

from __future__ import annotations

from pathlib import Path

from jengine.models import registry

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- supported models -->\n", "<!-- end of supported models -->\n"


def test_readme_shows_the_table() -> None:
    """`python -m jengine.models.registry` prints it."""
    text = README.read_text(encoding="utf-8")
    assert text.count(BEGIN) == text.count(END) == 1
    shown = text.split(BEGIN)[1].split(END)[0].strip()
    assert shown == registry.markdown_table()
