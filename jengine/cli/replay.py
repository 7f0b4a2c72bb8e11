"""`jengine replay`: reruns a recording's steps and compares them token by token."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from jengine.cli.flags import add_engine_flags, given_engine_settings
from jengine.cli.parser import Parser
from jengine.cli.terminal import Terminal

if TYPE_CHECKING:
    from jengine.cli.main import OpenLLM

USAGE = "FILE [--model MODEL] [flags]"
EXAMPLES = """\
An engine with flight_recorder=FOLDER writes such a file when a step fails, and at any time with
llm.write_recording(). The engine that runs it again has the recording's settings; flags change
where and how it runs:

  jengine replay steps-4711-1.jengine
  jengine replay steps-4711-1.jengine --tensor-parallel-size 2 --attention-backend xla

The exit status is 0 if every token is the same, else 1. Tokens of nearly equal probability may
differ between kernels and meshes.
"""


def add_flags(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a recording")
    parser.add_argument("--model", help="its model, if that is not where it was any more")
    add_engine_flags(parser)


def run(arguments: argparse.Namespace, terminal: Terminal, open_llm: OpenLLM) -> int:
    changed = given_engine_settings(arguments)
    if arguments.model:
        changed["model"] = arguments.model
    replaying = importlib.import_module("jengine.cli.replaying")  # imports jax
    return replaying.replay_file(arguments.file, changed, terminal, open_llm)
