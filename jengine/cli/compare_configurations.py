"""`jengine compare --against "jengine ..."`: compares engine configurations.

In: parsed arguments. Out: a table on the terminal, and requested files.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jengine.assembly.settings.flags import flag_of
from jengine.cli.flags import add_engine_flags, engine_arguments, flag_words
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import ConfigError
from jengine.pictures.page import aligned

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM
    from jengine.research.options import Options
    from jengine.research.scheme_results import SchemeComparison

OURS = "jengine"
# What `--each schemes` stands for.
SCHEMES = (
    "--dtype bfloat16",
    "--quantization int8",
    "--quantization int8_with_head",
    "--quantization int4",
    "--quantization fp8",
    "--kv-cache-dtype int8",
    "--kv-cache-dtype fp8",
)
# Options of a comparison with torch only.
UNUSED = ("save_bundle", "torch_python")


def is_wanted(arguments: argparse.Namespace) -> bool:
    """Whether --against names a jengine configuration rather than torch."""
    words = shlex.split(arguments.against)
    if words[:1] == [OURS]:
        return True
    if arguments.each or arguments.speed:
        flag = "--each" if arguments.each else "--speed"
        raise ConfigError(f"{flag} is for --against 'jengine ...', with the settings of the truth.")
    return False


def compare(
    arguments: argparse.Namespace,
    settings: Mapping[str, Any],
    options: Options,
    only: tuple[str, ...],
    terminal: Terminal,
    open_llm: OpenLLM,
) -> int:
    """Compare, print and write. The status is 0: there is no verdict."""
    for name in UNUSED:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"{flag_of(name)} is for a comparison with torch. Leave it out.")
    research = importlib.import_module("jengine.research.configurations")
    truth = parsed(shlex.split(arguments.against)[1:], arguments.model, only, terminal)
    wanted = [word for each in arguments.each for word in expanded(each)]
    others = [parsed(shlex.split(one), arguments.model, only, terminal) for one in wanted]
    if settings or not others:
        others.insert(0, {})
    named = {name_of(one): one for one in (truth, *({**settings, **one} for one in others))}
    if len(named) == 1:
        raise ConfigError("both configurations are the same; give other flags for one of them.")
    comparison = research.compare_configurations(
        arguments.model, named, options, timed=arguments.speed, open_llm=open_llm
    )
    show(comparison, terminal)
    if arguments.report is not None:
        comparison.save_report(arguments.report)
        terminal.note(f"Wrote {arguments.report}.")
    if arguments.json is not None:
        bench = importlib.import_module("jengine.bench.surroundings")
        comparison.save_json(arguments.json, bench.surroundings())
        terminal.note(f"Wrote {arguments.json}.")
    return 0


def expanded(each: str) -> tuple[str, ...]:
    """Flags that one `--each` stands for."""
    return SCHEMES if each == "schemes" else (each,)


def parsed(
    words: list[str], model: str, only: tuple[str, ...], terminal: Terminal
) -> dict[str, Any]:
    """Parse engine settings from these flags."""
    parser = Parser(prog=f"jengine compare: {shlex.join(words)}", stderr=terminal.stderr)
    add_engine_flags(parser, only=only)
    arguments = parser.parse(words)
    arguments.model = model
    return engine_arguments(arguments)


def name_of(settings: Mapping[str, Any]) -> str:
    """Display name of a configuration: its flags."""
    return shlex.join(flag_words(dict(settings))) or "as it is"


def show(comparison: SchemeComparison, terminal: Terminal) -> None:
    terminal.say(
        f"{comparison.tokens} tokens of {comparison.prompts} prompts; the truth is "
        f"{comparison.truth!r}."
    )
    terminal.say()
    for line in aligned(comparison.rows()):
        terminal.say(line)
