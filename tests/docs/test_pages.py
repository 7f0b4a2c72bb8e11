"""README and documentation: links lead somewhere, made parts are made, Python on the pages runs."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import jengine
from jengine.bench.serve.launched import our_server
from tests.docs.pictures import PICTURES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "jengine" / "docs"
PAGES = sorted((DOCS / "pages").glob("*.md"))
README = ROOT / "README.md"
# Blocks marked `py` need weights or devices that are not here; those marked `python` run.
PROGRAM = re.compile(r"^```python\n(.*?)^```$", flags=re.M | re.S)
PROGRAMS = {
    page.name: "\n".join(found)
    for page in PAGES
    if (found := PROGRAM.findall(page.read_text(encoding="utf-8")))
}


@pytest.fixture(scope="module")
def made_parts() -> ModuleType:
    """The hook, as MkDocs loads it: by its path."""
    spec = importlib.util.spec_from_file_location("made_parts", DOCS / "made_parts.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_public_name_has_its_reference() -> None:
    text = (DOCS / "pages" / "api.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^::: ([\w.]+)$", text, flags=re.M))
    expected = {f"{home}.{name}" for name, home in jengine._HOMES.items() if name != "EngineArgs"}
    assert expected - listed == set()
    assert "[EngineArgs](settings.md)" in text


def test_the_changelog_begins_with_this_version() -> None:
    text = (DOCS / "pages" / "changelog.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, flags=re.M)[0] == jengine.__version__


def test_pictures_are_those_that_the_script_makes() -> None:
    files = {file.name: file.stat().st_size for file in (DOCS / "pages" / "pictures").iterdir()}
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(files) == {f"{name}.webp" for name in PICTURES}
    assert set(re.findall(r"\(pictures/([^)]+)\)", text)) == set(files)
    assert sum(files.values()) < 1_000_000


def test_every_page_is_in_the_menu() -> None:
    menu = re.findall(
        r": (\w+\.md)$", (DOCS / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M
    )
    assert sorted(menu) == [page.name for page in PAGES]


def test_parts_are_made(made_parts: ModuleType) -> None:
    marks = [mark for page in PAGES for mark in made_parts.MARK.findall(page.read_text("utf-8"))]
    assert set(made_parts.PARTS) < set(marks)
    assert all(len(made_parts.made(mark)) > 200 for mark in marks)


def test_every_flag_of_the_server_is_told(made_parts: ModuleType) -> None:
    told = made_parts.commands()
    for flag in ("--max-num-seqs", "--api-key", "--tool-call-parser", "--tensor-parallel-size"):
        assert f"`{flag}`" in told


def test_errors_of_the_faq_are_in_the_code() -> None:
    texts = "\n".join(
        node.value
        for path in (ROOT / "jengine").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = (DOCS / "pages" / "faq.md").read_text(encoding="utf-8")
    quoted = re.findall(r"^```text\n(.*?)\n```$", page, flags=re.M | re.S)
    parts = [part.strip() for text in quoted for part in text.split("…") if part.strip()]
    assert len(quoted) >= 20
    assert [part for part in parts if part not in texts] == []


# README's first program: the ones after it need parameters, or a server that runs.
FIRST = PROGRAM.findall(README.read_text(encoding="utf-8"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", *PROGRAMS])
def test_programs_run_and_show_no_babble(page: str, tmp_path: Path) -> None:
    file = tmp_path / "page.py"
    file.write_text({**PROGRAMS, "README.md": FIRST}[page], encoding="utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert not re.search(r"(\S+)(\W+\1){3}", done.stdout), done.stdout
    told = re.findall(r"\.text\)  # (.+)$", file.read_text(encoding="utf-8"), flags=re.M)
    assert [text for text in told if text not in done.stdout] == [], done.stdout


@pytest.mark.slow
def test_the_demo_model_fills_the_tool_call_of_the_page() -> None:
    page = (DOCS / "pages" / "structured.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^```\n(curl .*?)^```$", page, flags=re.M | re.S)
    (told,) = re.findall(r"calls `save_pet` with `(.+)`", page)
    with our_server("demo", ["--max-num-seqs", "1", "--max-model-len", "128"]) as url:
        words = shlex.split(command.replace("http://127.0.0.1:8000", url))
        done = subprocess.run([*words, "-sS"], capture_output=True, text=True, check=True)
    (call,) = json.loads(done.stdout)["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "save_pet", "arguments": told}
