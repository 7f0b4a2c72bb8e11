"""The documentation's search from file: URLs: its worker runs in a frame, from the site."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.server.browser import browser, chromium

THEME = Path(__file__).parents[2] / "jengine" / "docs" / "theme"
PAGE = """<body><script src="worker.js"></script><script>
  window.answers = []
  const worker = new Worker(new URL("doubling.js", location))
  worker.addEventListener("message", event => answers.push(event.data))
  worker.postMessage(20)
  worker.postMessage(1)
</script></body>"""
DOUBLING = """
  let more = 0
  addEventListener("message", async event => {
    await importScripts(new URL("more.js", parent.location))
    postMessage(2 * event.data + more)
  })
"""


@pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")
def test_a_worker_answers_a_page_that_was_opened_as_a_file(tmp_path: Path) -> None:
    shutil.copy(THEME / "assets" / "worker.js", tmp_path)
    (tmp_path / "page.html").write_text(PAGE, "utf-8")
    (tmp_path / "doubling.js").write_text(DOUBLING, "utf-8")
    (tmp_path / "more.js").write_text("more = 1", "utf-8")
    with browser(tmp_path / "profile") as page:
        page.open((tmp_path / "page.html").as_uri())
        assert sorted(page.until("answers.length === 2 && answers")) == [3, 41]
        assert page.problems == []


def test_the_theme_takes_its_worker_from_the_site() -> None:
    assert "{% block libs %}" in (template := (THEME / "main.html").read_text("utf-8"))
    assert "worker.js" in template and "//" not in template
