"""A MkDocs hook: parts of pages that are made of the program itself.

`<!-- made: NAME -->` in a page is replaced by what the function of that name in PARTS returns, so
that no page repeats what a parser, a dataclass or a route says.
"""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

from jengine.assembly.settings.args import ENGINE_HELP, SETTINGS, EngineArgs
from jengine.assembly.settings.flags import shown_default
from jengine.cli.checks.environment import MEANING
from jengine.cli.main import COMMANDS, command_parser, load_command
from jengine.cli.terminal import Terminal
from jengine.device_advice import GRAPH_ROOM, KNOWN, ROOM
from jengine.models.supported import markdown_table
from jengine.pictures.page import Table, as_markdown
from jengine.server.app import ENDPOINTS
from pallas_kernels.fa4.rules import CAPABILITIES, PROVED, RULES, WHY_NOT_AUTO

ROOT = Path(__file__).parents[2]
MARK = re.compile(r"<!-- made: ([\w/.]+) -->")
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)[^)]+\)")
# Printed in help of flags where nothing is to be said.
HIDDEN = argparse.SUPPRESS


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by MkDocs with the text of each page."""
    return MARK.sub(lambda mark: made(mark[1]), markdown)


def made(name: str) -> str:
    """A part by its name, or a file of the repository by its path."""
    return PARTS[name]() if name in PARTS else included(ROOT / name)


def included(path: Path) -> str:
    """A Markdown file of the repository; its links to files are left as their texts."""
    return LINK.sub(r"\1", path.read_text(encoding="utf-8"))


def commands() -> str:
    """Every command with its usage, examples and flags, from its own parser."""
    return "\n".join(line for name in COMMANDS for line in command_lines(name))


def command_lines(name: str) -> Iterator[str]:
    """One command's section."""
    command = load_command(name)
    parser = command_parser(name, command, Terminal(io.StringIO(), io.StringIO(), io.StringIO()))
    yield f"\n## jengine {name}\n\n{parser.description}\n"
    yield f"```\n{parser.usage}\n```\n"
    if command.EXAMPLES.strip():
        yield f"```\n{command.EXAMPLES.strip()}\n```\n"
    for group in parser._action_groups:
        rows = [row(action) for action in group._group_actions if action.help != HIDDEN]
        if rows:
            yield as_markdown(f"**{group.title}**", Table(("flag", ""), rows)) + "\n"


def row(action: argparse.Action) -> tuple[str, str]:
    """A flag's row."""
    names = ", ".join(f"`{one}`" for one in action.option_strings or [action.dest])
    return names, cell(action.help or "")


def cell(text: str) -> str:
    """Text that may stand in a table: without what HTML or argparse would read."""
    return " ".join(text.replace("%%", "%").replace("<", "&lt;").split())


def device_errors() -> str:
    """What the engine says about errors of devices."""
    known = {f"out of memory, {doing.value}": todo for doing, todo in ROOM.items()}
    known |= {"out of memory, recording CUDA graphs": GRAPH_ROOM}
    known |= {one.name: one.todo for one in KNOWN}
    return as_markdown(Table(("error", "what to do"), [(k, cell(v)) for k, v in known.items()]))


def settings() -> str:
    """The engine's settings from their declarations."""
    known = {field.name: field for field in fields(EngineArgs)}
    rows = []
    for name, text in ENGINE_HELP.items():
        if text != HIDDEN:
            default = shown_default(known[name]).strip(" []")
            rows.append((f"`{name}`", f"`{default}`" if default else "", cell(text)))
    unflagged = [name for name in SETTINGS if name not in ENGINE_HELP and name != "model"]
    rows += [(f"`{name}`", "", "Python only") for name in unflagged]
    return as_markdown(Table(("setting", "default", ""), rows))


def routes() -> str:
    """The server's routes from its table."""
    rows = ((f"`{one.method} {one.path}`", ACCESS[one.access.name]) for one in ENDPOINTS)
    return as_markdown(Table(("route", "who may call it"), rows))


def environment() -> str:
    """The variables of JAX and of the system that `jengine doctor` knows."""
    rows = ((f"`{name}`", text) for name, text in MEANING.items())
    return as_markdown(Table(("variable", "meaning"), rows))


def attention_kernels() -> str:
    """Which implementation of each attention is whose."""
    rows = []
    for name in ("prefill", "decode", "latent"):
        known = import_module(f"pallas_kernels.{name}_attention").IMPLEMENTATIONS
        columns = [OWNERS[home_of(known.get(one))] for one in ("xla", "cpu", "triton")]
        prompts = "FlashAttention-4 and Triton" if "fa4" in known else columns[-1]
        rows.append((WORDS[name], *columns, prompts))
    return as_markdown(Table(("attention of", "`xla`", "`cpu`", "`triton`", "`fa4`"), rows))


def studies() -> str:
    """The kept studies of whole fleets, from their results."""
    study = import_module("jengine.capacity.simulation.study")
    files = (study.KEPT / f"fleet-{name}.json" for name in study.QUESTIONS)
    kept = (json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists())
    return as_markdown(*map(study.section, kept))


def home_of(found: Any) -> str:
    """The last word of a function's name: xla, cpu or triton."""
    name = found if isinstance(found, str) else found.__name__
    return name.rpartition("_")[2]


def fa4_rules() -> str:
    """What FlashAttention-4's kernels cannot do."""
    rows = ((what, rule.why) for what, rule in RULES.items())
    return as_markdown(Table(("what", "why"), rows))


def fa4_choice() -> str:
    """On which devices they run, and where `auto` chooses them."""
    devices, chosen, others = (
        ", ".join(f"{one / 10:.1f}" for one in some)
        for some in (CAPABILITIES, PROVED, sorted({*CAPABILITIES} - {*PROVED}))
    )
    return (
        f"Devices of other compute capabilities than {devices} are refused.\n\n"
        f"**`auto` chooses them on {chosen}**, where both packages are installed and no rule is "
        f"against some layer, with the given `block_size` if there is one. Not on {others}: "
        f"{WHY_NOT_AUTO}."
    )


WORDS = {
    "prefill": "prompts",
    "decode": "decodes",
    "latent": "latent vectors (MLA), prompts and decodes",
}
OWNERS = {"xla": "XLA", "cpu": "C++", "triton": "Triton"}
ACCESS = {
    "PUBLIC": "everybody",
    "KEY": "holders of the API key",
    "ADMIN": "holders of the admin key",
}
PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "families": markdown_table,
    "device_errors": device_errors,
    "settings": settings,
    "routes": routes,
    "attention_kernels": attention_kernels,
    "fa4_rules": fa4_rules,
    "fa4_choice": fa4_choice,
    "environment": environment,
    "studies": studies,
}
