"""`jengine pull`: downloads a model from the Hugging Face Hub."""

from __future__ import annotations

import argparse
import importlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jengine.assembly.settings.args import EngineArgs, settings_of
from jengine.cli.flags import add_engine_flags, engine_arguments
from jengine.cli.interrupts import interrupts_end_the_process
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal
from jengine.errors import CheckpointError, JengineError
from jengine.hub.names import hub_name
from jengine.hub.options import Check
from jengine.hub.snapshot import local_snapshot
from jengine.hub.wanted import ADAPTERS, SETTINGS, ModelFiles

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "NAME [flags]"
EXAMPLES = """\
Commands that are given NAME download it too: this only does it earlier. What has arrived of a
download that broke off is kept. The last line is the folder.

examples:
  jengine pull Qwen/Qwen3-0.6B
  jengine pull org/name --revision v1.0 --download-dir /data/models
  jengine pull org/name-GGUF:Q4_K_M
  jengine pull org/adapter --part adapter
"""
# Imported lazily: they import numpy and tqdm, which help avoids.
LOCATED, PROGRESS = "jengine.assembly.located", "jengine.assembly.progress"
# --part -> the repository's files, given the load format.
PARTS = {
    "model": lambda load_format: ModelFiles(load_format=load_format),
    "tokenizer": lambda _: SETTINGS,
    "adapter": lambda _: ADAPTERS,
}
FLAGS = settings_of("pull")


def advised(check: Check) -> Check:
    """Wrap a check so that its error says how to download anyway."""

    def with_advice(folder: Path) -> None:
        try:
            check(folder)
        except JengineError as error:
            raise type(error)(f"{error} `jengine pull --any` downloads it all the same.") from error

    return with_advice


def add_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="NAME", help="org/name, or org/name:QUANTIZATION")
    parser.add_argument("--part", choices=tuple(PARTS), default="model", help="[model]")
    parser.add_argument(
        "--any", action="store_true", help="also what is no model that runs here, as draft heads"
    )
    add_engine_flags(parser, only=FLAGS)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    settings = engine_arguments(arguments)
    name = hub_name(arguments.model)
    if name is None:
        raise CheckpointError(f"{arguments.model!r}: expected the name of a repository, org/name.")
    args = EngineArgs.checked("jengine pull", model=arguments.model, **settings)
    check = (
        None if arguments.any else advised(importlib.import_module(LOCATED).checked_elsewhere(args))
    )
    wanted = PARTS[arguments.part](args.load_format)
    bars = importlib.import_module(PROGRESS).download_bars(None)
    with interrupts_end_the_process():
        found = local_snapshot(name, replace(args.hub, wanted=wanted, check=check, bar=bars))
    terminal.say(str(found))
    return 0
