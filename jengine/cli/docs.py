"""`jengine docs`: opens locally built documentation, or says how to build it.

In: the repository's folder. Out: a browser window, and the path on the last line. Pages and search
work from file: URLs.
"""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import jengine
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "[PAGE] [flags]"
EXAMPLES = """\
The documentation is in the repository, not in the wheel. Build it once:
  pip install -e '.[docs]' && mkdocs build -f jengine/docs/mkdocs.yml

examples:
  jengine docs
  jengine docs structured
  jengine docs --print
"""
ROOT = Path(jengine.__file__).parents[1]


def add_flags(parser: Parser) -> None:
    parser.add_argument("page", nargs="?", default="index", metavar="PAGE", help="[index]")
    parser.add_argument("--print", action="store_true", help="print the path, open nothing")


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    page = built_page(ROOT, arguments.page)
    if not arguments.print and terminal.interactive:
        webbrowser.open(page.as_uri())
    terminal.say(str(page))
    return 0


def built_page(root: Path, name: str) -> Path:
    """Path of a built page.

    Raises:
        ConfigError: there is no such page, or the documentation is not built or not here.
    """
    sources = root / "jengine" / "docs"
    if not (sources / "mkdocs.yml").exists():
        raise ConfigError(
            "the documentation is not in this installation: it is in the repository's folder "
            "jengine/docs. Flags are in `jengine COMMAND --help`, routes at /docs of a server."
        )
    pages = sorted(page.stem for page in (sources / "pages").glob("*.md"))
    if name not in pages:
        raise ConfigError(f"page {name!r:.60}: expected one of {', '.join(pages)}.")
    built = root / "site" / f"{name}.html"
    if not built.exists():
        raise ConfigError(
            f"the documentation is not built: {built} is missing. In {root} run: "
            "pip install -e '.[docs]' && mkdocs build -f jengine/docs/mkdocs.yml"
        )
    return built
