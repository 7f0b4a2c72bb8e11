"""`jengine docs` finds pages that were built, and says what to do where there are none."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from jengine.cli import docs
from jengine.cli.main import main
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    pages = tmp_path / "jengine" / "docs" / "pages"
    pages.mkdir(parents=True)
    (pages.parent / "mkdocs.yml").touch()
    for name in ("index", "faq"):
        (pages / f"{name}.md").touch()
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "faq.html").touch()
    return tmp_path


def test_a_built_page_is_printed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "ROOT", repository)
    out = io.StringIO()
    assert main(["docs", "faq"], terminal=Terminal(io.StringIO(), out, io.StringIO())) == 0
    assert out.getvalue().strip() == str(repository / "site" / "faq.html")


def test_what_is_missing_is_said(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="mkdocs build"):
        docs.built_page(repository, "index")
    with pytest.raises(ConfigError, match="expected one of faq, index"):
        docs.built_page(repository, "../index")
    with pytest.raises(ConfigError, match="not in this installation"):
        docs.built_page(tmp_path / "elsewhere", "index")
