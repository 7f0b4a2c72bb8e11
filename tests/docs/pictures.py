"""Makes the documentation's pictures from real runs, in a headless Chromium.

    python -m tests.docs.pictures [NAME ...]     # all, or those named

In: commands of jengine. Out: jengine/docs/pages/pictures/NAME.webp, and the whole page of the
comparison. `compare` needs torch and the package of tests/published/conftest.py.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from jengine.bench import growth
from tests.multihost.launch import free_port
from tests.published.conftest import FILE, PACKAGE
from tests.server.browser import Page, browser

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "jengine" / "docs" / "pages"
FOLDER = PAGES / "pictures"
COMPARISON = PAGES / "comparison.html"
WIDTH = 1100
HEIGHTS = {
    "chat": 620, "compare": 1000, "plan": 920, "simulate": 780, "growth": 850, "doctor": 490,
}  # fmt: skip
TERMINAL = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 22px 26px; background: #14181f; color: #e6e9ee; }
pre { margin: 0; font: 14px/1.55 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  padding-left: 24ch; text-indent: -24ch; }
</style>"""


def jengine(*words: str) -> str:
    """What a command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "jengine", *words], capture_output=True, text=True, check=True
    )
    return done.stdout


def shown(page: Page, url: str) -> bytes:
    """What a page looks like when it is opened."""
    page.open(url)
    return page.picture(form="webp")


def chat(page: Page, folder: Path) -> bytes:
    """The chat of a server with the demo model, with answers in colours."""
    port = free_port()
    command = [sys.executable, "-m", "jengine", "serve", "demo", "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_until_ready(server)
        page.open(f"http://127.0.0.1:{port}/")
        page.until("document.getElementById('limits').textContent")
        page.value("document.getElementById('colours').click()")
        for number in (1, 2):
            page.value(f"document.querySelectorAll('#prompts button')[{number % 2}].click()")
            page.until(f"document.querySelectorAll('article .note').length === {number}")
        page.until("document.getElementById('running').textContent === '0'")
        return page.picture(form="webp")
    finally:
        server.terminate()
        server.communicate()


def wait_until_ready(server: subprocess.Popen[str]) -> None:
    """Read a server's log up to the line after which it answers."""
    assert server.stderr is not None
    if not any("startup complete" in line for line in server.stderr):
        raise RuntimeError("the server ended before it was ready")


def compare(page: Page, folder: Path) -> bytes:
    """The comparison of a published model with torch."""
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations, f"{PACKAGE} is not installed"
    model = Path(spec.submodule_search_locations[0]) / FILE
    report = ["--new-tokens", "16", "--report", str(folder / "comparison.html")]
    jengine("compare", str(model), *report)
    text = (folder / "comparison.html").read_text("utf-8")
    for place in (model.parent, folder):
        text = text.replace(f"{place}/", "")
    COMPARISON.write_text(text, "utf-8")
    return shown(page, COMPARISON.as_uri())


def plan(page: Page, folder: Path) -> bytes:
    """The plan of a large model."""
    options = ["--tp", "8", "--device", "h200"]
    jengine("plan", "llama-70b", *options, "--html", str(folder / "plan.html"))
    return shown(page, (folder / "plan.html").as_uri())


def simulate(page: Page, folder: Path) -> bytes:
    """The simulation of eight replicas."""
    options = ["--device", "h100", "--replicas", "8", "--rate", "60", "--requests", "2000"]
    jengine("simulate", "llama-8b", *options, "--html", str(folder / "simulation.html"))
    return shown(page, (folder / "simulation.html").as_uri())


def kept_growth(page: Page, folder: Path) -> bytes:
    """The charts of the growth that was measured last."""
    result = growth.read(ROOT / "jengine" / "bench" / "results" / "growth-cpu.json")
    return shown(page, growth.draw(result, folder).as_uri())


def doctor(page: Page, folder: Path) -> bytes:
    """What `jengine doctor` prints, with the names of this machine's folders shortened."""
    text = jengine("doctor").replace(str(ROOT), "~/src").replace(str(Path.home()), "~")
    text = html.escape(re.sub(r"Linux-[^\s,]+", "Linux", text))
    said = ["$ jengine doctor", *text.splitlines()]
    lines = "".join(f"<pre>{line or ' '}</pre>" for line in said)
    (folder / "doctor.html").write_text(TERMINAL + lines, "utf-8")
    return shown(page, (folder / "doctor.html").as_uri())


PICTURES: dict[str, Callable[[Page, Path], bytes]] = {
    "chat": chat,
    "compare": compare,
    "plan": plan,
    "simulate": simulate,
    "growth": kept_growth,
    "doctor": doctor,
}


def main(names: list[str]) -> None:
    """Make these pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as found, browser(Path(found, "profile")) as page:
        for name in names:
            page.resize(WIDTH, HEIGHTS[name])
            (FOLDER / f"{name}.webp").write_bytes(PICTURES[name](page, Path(found)))
            sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PICTURES))
